"""Finds the jobs of agents that send no `job_id`, by prompts that continue an earlier turn.

A request that has finished is remembered for a while. A later one whose prompt repeats all of its
prompt and its reply, and goes on, is the next turn of the same conversation; the seconds between
the two tell agents from people. Runs on the engine's main thread, but for the reading of replies;
knows nothing of pins or policies.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from bisect import bisect_left
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentkv.durations.ttl import TTL
from agentkv.events import Inferred
from agentkv.policies.continuum import tool_name
from agentkv.policies.forecast import JobGrowth
from agentkv.policies.jobs import Context, Decision, Job
from agentkv.policies.settings import Settings
from agentkv.protocol import JobKey
from agentkv.watchers import EventStream

from .background import BackgroundWorker
from .jobs import JobTable
from .predictor import Decode, Reply, command_of_reply

MAX_REWRITTEN_TOKENS = 4
"""Tokens at the end of a prompt that may differ in the next one. Templates open a thought for the
model there and leave it out of earlier turns: at most `<think>`, blank, `</think>`, blank."""
MAX_REPLY_TOKENS = 32
"""Tokens kept of a reply's start, which also distinguish samples of one prompt, and of its end."""
RUN_TOKENS = 4
"""Tokens in a row of a reply's start or end that prove, anywhere behind the repeated prompt, that
the reply is repeated: templates leave thoughts out, write calls again, and move what follows."""
MAX_SEARCHED_TOKENS = 2048
"""Tokens behind the repeated prompt in which the reply is looked for."""
START_TOKENS = 64
"""Tokens at the start of a prompt that distinguish kinds of requests: more than the default system
prompt of a chat template, fewer than an agent's."""
END_TOKENS = 64
"""Tokens at the end of a reply in which a tool call would be closed."""
_CLOSERS = frozenset("`~}>])")
"""Characters of which a call ends with one, in every dialect."""
MAX_KINDS = 1000
"""Kinds of requests remembered that have been continued."""
MAX_OUTCOMES = 64
"""Requests of a kind that count; beyond that, each counts by half as much."""
MIN_JOBS, MIN_SHARE = 4, 0.8
"""Jobs that requests of a kind must have opened, and their share, until the next one is expected to
open a job. Chosen: a request that is wrongly expected to may be held back by admission control."""
GRACE_S = 5.0
"""Seconds in which an agent goes on after a reply in which no tool call was read, as a rule: of
recorded coding agents' tools 9 in 10 take less, people hardly ever answer sooner."""
SILENCE_S = 60.0
"""Seconds without a next turn that end a job whose tool calls cannot be read."""
MAX_ENDED, ENDED_LEASE_S = 4096, 300.0
"""Finished requests of no job that are remembered, and for how long: 3 KiB each."""
MAX_SIBLINGS = 128
"""Open turns remembered of prompts that are equal up to their last full block."""


@dataclass(slots=True)
class Kind:
    """Requests that start alike: how those that continued nothing ended, and what came after
    replies."""

    num_ended: int = 0
    num_jobs: int = 0
    opens_jobs: bool = False
    """The next one is expected to open a job."""
    num_called: int = 0
    """Turns that followed a reply in which a tool call was read."""
    num_soon: int = 0
    """Turns that followed any other reply within GRACE_S."""
    num_late: int = 0
    """Turns that followed any other reply later."""

    def ended(self) -> None:
        """A request of the kind has ended; so far nothing continues it."""
        self.num_ended += 1
        if self.num_ended > MAX_OUTCOMES:
            self.num_ended //= 2
            self.num_jobs //= 2
        self._judge()

    def opened_job(self) -> None:
        """One that has ended opened a job, which goes on."""
        self.num_jobs += 1
        self._judge()

    def _judge(self) -> None:
        is_usual = self.num_jobs >= MIN_SHARE * self.num_ended
        self.opens_jobs = is_usual and self.num_jobs >= MIN_JOBS

    def went_on(self, *, has_call: bool, is_soon: bool) -> None:
        """A conversation of the kind went on after a reply."""
        self.num_called += has_call
        self.num_soon += is_soon and not has_call
        self.num_late += not (is_soon or has_call)
        if self.num_called + self.num_soon + self.num_late > MAX_OUTCOMES:
            self.num_called //= 2
            self.num_soon //= 2
            self.num_late //= 2

    @property
    def is_of_agents(self) -> bool:
        """At least half of its replies were not followed by a person's pause."""
        return self.num_called + self.num_soon >= self.num_late

    @property
    def hides_calls(self) -> bool:
        """Its conversations go on although no tool call is read in most replies."""
        return self.num_soon > self.num_called


def _packed(tokens: Sequence[int]) -> bytes:
    return array("i", tokens).tobytes()


_TOKEN_BYTES = array("i").itemsize


@dataclass(slots=True, eq=False)
class OpenTurn:
    """The last turn of a job, or of what may become one, and what a next prompt repeats of it.

    `last_hash` is of the last full block of its prompt that no chat template rewrites, after
    `num_hashed_tokens`; `tail` has the tokens from there on, with the first of the reply.
    """

    job: Job
    last_hash: Any
    num_hashed_tokens: int
    num_prompt_tokens: int
    tail: bytes
    reply_end: bytes
    kinds: Sequence[Kind]
    """The kinds for which a first turn counts once it is continued."""

    @classmethod
    def of(cls, job: Job, context: Context, kinds: Sequence[Kind] = ()) -> OpenTurn | None:
        """The turn that ended with this context; None if its prompt fills no block."""
        num_prompt_tokens = context.num_prompt_tokens
        num_blocks = (num_prompt_tokens - MAX_REWRITTEN_TOKENS) // context.block_tokens
        if num_blocks < 1:
            return None
        num_hashed_tokens, tokens = num_blocks * context.block_tokens, context.token_ids
        tail = _packed(tokens[num_hashed_tokens : num_prompt_tokens + MAX_REPLY_TOKENS])
        reply_end = _packed(tokens[max(num_prompt_tokens, len(tokens) - MAX_REPLY_TOKENS) :])
        last_hash = context.block_hashes[num_blocks - 1]
        return cls(job, last_hash, num_hashed_tokens, num_prompt_tokens, tail, reply_end, kinds)

    @property
    def has_call(self) -> bool:
        """A tool call was read in its reply: that the prompt is repeated is proof enough."""
        decision = self.job.decision
        return decision is not None and decision.command is not None

    def num_repeated_bytes(self, rest: bytes) -> int:
        """Bytes of the tail that a prompt repeats whose tokens behind `last_hash` are `rest`."""
        sizes = range(1, len(self.tail) + 1)
        return bisect_left(sizes, True, key=lambda size: not rest.startswith(self.tail[:size]))

    def is_continued_by(self, num_tokens: int, rest: bytes) -> bool:
        """True if a prompt of `num_tokens`, of which `rest` is behind `last_hash`, repeats this
        turn's prompt and reply and goes on.

        A job with a turn in the engine is not continued: that is a fork of it, or a retry.
        """
        if self.job.live or num_tokens <= self.num_prompt_tokens:
            return False
        needed = self.num_prompt_tokens - MAX_REWRITTEN_TOKENS - self.num_hashed_tokens
        prompt_end = self.tail[: needed * _TOKEN_BYTES]
        if not rest.startswith(prompt_end):
            return False
        return self.has_call or self._is_reply_in(rest[len(prompt_end) :])

    def _is_reply_in(self, tokens: bytes) -> bool:
        num_tail_tokens = self.num_prompt_tokens - self.num_hashed_tokens
        reply_start = self.tail[num_tail_tokens * _TOKEN_BYTES :]
        num_tokens = len(reply_start) // _TOKEN_BYTES
        size = min(RUN_TOKENS, max(1, num_tokens - 1)) * _TOKEN_BYTES  # the last ends the turn
        return any(
            part[start : start + size] in tokens
            for part in (reply_start, self.reply_end)
            for start in range(0, len(part) - size + 1, _TOKEN_BYTES)
        )


class OpenTurns:
    """The open turns of one engine, at most one a job; the oldest first.

    Those of jobs are kept apart from those of requests that may have opened one, of which any
    traffic leaves many.
    """

    def __init__(self, *, max_jobs: int, lease_s: float) -> None:
        self._max_jobs = max_jobs
        self._lease_s = lease_s
        self._of_jobs: OrderedDict[str, OpenTurn] = OrderedDict()
        self._of_requests: OrderedDict[str, OpenTurn] = OrderedDict()
        self._by_hash: defaultdict[Any, list[OpenTurn]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._of_jobs) + len(self._of_requests)

    def get(self, job_id: str) -> OpenTurn | None:
        return self._of_jobs.get(job_id) or self._of_requests.get(job_id)

    def put(self, turn: OpenTurn, now_s: float, *, is_of_job: bool) -> None:
        """Add a last turn in place of the one before; drops those that are too old, or too many."""
        self.remove(turn.job.job_id)
        siblings = self._by_hash[turn.last_hash]
        if len(siblings) >= MAX_SIBLINGS:
            self.remove(siblings[0].job.job_id)
        self._by_hash[turn.last_hash].append(turn)
        turns, most, lease_s = self._of_jobs, self._max_jobs, self._lease_s
        if not is_of_job:
            turns = self._of_requests
            most, lease_s = min(most, MAX_ENDED), min(lease_s, ENDED_LEASE_S)
        turns[turn.job.job_id] = turn
        while (oldest := next(iter(turns.values()))) is not turn:
            age_s = now_s - oldest.job.last_activity_s
            if age_s < lease_s and len(turns) <= most:
                return
            self.remove(oldest.job.job_id)

    def remove(self, job_id: str) -> None:
        """Drop a job's open turn, if there is one."""
        turn = self._of_jobs.pop(job_id, None) or self._of_requests.pop(job_id, None)
        if turn is not None:
            turns = self._by_hash[turn.last_hash]
            turns.remove(turn)
            if not turns:
                del self._by_hash[turn.last_hash]

    def continued_by(
        self, prompt: Sequence[int], block_hashes: Sequence[Any], client: str
    ) -> OpenTurn | None:
        """The turn of this client that a prompt continues: of several the one it repeats most of,
        then the oldest.

        One look-up for each block of the prompt that is new since that turn's prompt; for each of
        all its blocks, 0.03 microseconds each, if there is no such turn.
        """
        for block_hash in filter(self._by_hash.__contains__, reversed(block_hashes)):
            siblings = self._by_hash[block_hash]
            start = siblings[0].num_hashed_tokens
            rest = _packed(prompt[start : start + MAX_SEARCHED_TOKENS])
            turns = [
                turn
                for turn in siblings
                if turn.job.client == client and turn.is_continued_by(len(prompt), rest)
            ]
            if turns:
                return max(turns, key=lambda turn: turn.num_repeated_bytes(rest))
        return None


def inferred_id(request_id: str, client: str = "") -> JobKey:
    """Key of the inferred job that a request opens. No client can guess another's: vLLM makes each
    request's id unique by random digits (vllm/v1/engine/input_processor.py, 0.32.0)."""
    return JobKey(client, f"inferred-{request_id}")


class JobInference:
    """The inferred jobs of one engine. If it is not `is_on` it never knows any."""

    def __init__(
        self,
        settings: Settings,
        worker: BackgroundWorker,
        clock: Callable[[], float],
        block_tokens: int,
        jobs: JobTable,
        stream: EventStream,
        growth: JobGrowth,
    ) -> None:
        """`worker` reads replies; jobs that are found come into `jobs`, and `growth` learns."""
        self._jobs = jobs
        self._clock = clock
        self._emit = stream.emit
        self._growth = growth
        self.is_on = settings.infer_jobs
        self.turns = OpenTurns(max_jobs=settings.max_jobs, lease_s=settings.job_lease_s)
        self._worker = worker
        self._start = max(1, START_TOKENS // block_tokens) - 1
        self._kinds: OrderedDict[Any, Kind] = OrderedDict()
        self._others = Kind()
        """Requests whose start no continued one had."""
        self._ended: tuple[str, OpenTurn] | None = None
        self._found: deque[tuple[OpenTurn, str]] = deque()
        self._ending: list[tuple[float, int, int, Job]] = []
        self._numbers = itertools.count()

    # A request arrives

    def job_id_of(
        self, request_id: str, prompt: Sequence[int], block_hashes: Sequence[Any], client: str = ""
    ) -> JobKey | None:
        """Key of the job that a request without a `job_id` continues or, where such requests do,
        opens; None if it does neither."""
        if not self.is_on or len(block_hashes) <= self._start:
            return None
        job = self._job_continued_by(prompt, block_hashes, client)
        if job is None:
            expects_job = self._kind_of(block_hashes).opens_jobs
            return inferred_id(request_id, client) if expects_job else None
        if self._jobs.get(job.job_id) is None:
            self._jobs.add(job)
            if job.num_turns == 1:
                self._growth.turn_ended(job.context_tokens - job.first_prompt_tokens)
        if job.num_turns == 1:  # its second turn proves it
            self._emit(Inferred, job.job_id)
        return job.job_id

    def _job_continued_by(
        self, prompt: Sequence[int], block_hashes: Sequence[Any], client: str
    ) -> Job | None:
        """The client's job whose last turn a request continues, unless a person does.

        A first turn counts for its kind as it was when it ended, too.
        """
        turn = self.turns.continued_by(prompt, block_hashes, client)
        if turn is None:
            return None
        now_s, finished_s = self._clock(), turn.job.finished_s
        is_soon = finished_s is not None and now_s - finished_s <= GRACE_S
        was_expected = any(kind.opens_jobs for kind in turn.kinds)
        kind = self._continued_kind(block_hashes[self._start])
        others = [other for other in turn.kinds if other is not kind]
        for each in (kind, *others):
            each.went_on(has_call=turn.has_call, is_soon=is_soon)
        if not (turn.has_call or was_expected or kind.is_of_agents):
            self.turns.remove(turn.job.job_id)
            return None
        if turn.kinds:
            for each in (kind, *others):
                each.opened_job()
            if others:  # it did not count for this kind when it ended
                kind.ended()
            turn.kinds = ()
        self.turns.put(turn, now_s, is_of_job=True)
        return turn.job

    def _kind_of(self, block_hashes: Sequence[Any]) -> Kind:
        return self._kinds.get(block_hashes[self._start], self._others)

    def _continued_kind(self, start_hash: Any) -> Kind:
        kind = self._kinds.setdefault(start_hash, Kind())
        self._kinds.move_to_end(start_hash)
        if len(self._kinds) > MAX_KINDS:
            self._kinds.popitem(last=False)
        return kind

    # A turn ends

    def request_ended(self, request_id: str, order: int, context: Context, client: str) -> None:
        """A request of no job has finished: it may have opened one."""
        if not self.is_on or len(context.block_hashes) <= self._start:
            return
        now_s, kind = self._clock(), self._kind_of(context.block_hashes)
        job = Job(inferred_id(request_id, client), order, is_inferred=True)
        job.first_prompt_tokens = context.num_prompt_tokens
        job.num_turns, job.has_run, job.last_activity_s = 1, True, now_s
        turn = OpenTurn.of(job, context, [kind])
        if turn is None:
            return
        kind.ended()
        job.finish_turn(now_s, context.num_tokens, context.checkpoints())
        self._ended = request_id, turn
        self.turns.put(turn, now_s, is_of_job=False)

    def wants_reply(self, request_id: str) -> bool:
        """True if the request that ended last may have opened a job."""
        return self._ended is not None and self._ended[0] == request_id

    def read(self, reply: Reply, decode: Decode) -> None:
        """Look for a tool call in the reply of the request that ended last, soon or now."""
        assert self._ended is not None
        (_, turn), self._ended = self._ended, None

        def look() -> None:
            if _CLOSERS.isdisjoint(decode(reply.token_ids[-END_TOKENS:])):
                return
            command = command_of_reply(reply, decode)
            if command is not None:
                self._found.append((turn, command))

        self._worker.do(look, turn.job.client)

    def take_found(self) -> None:
        """Note which ended requests were found to call a tool. O(1) if there are none."""
        while self._found:
            turn, command = self._found.popleft()
            if self.turns.get(turn.job.job_id) is turn and turn.kinds:
                turn.job.tool = tool_name(command) or None
                turn.job.decision = Decision(TTL(0.0, "not pinned: no job was known"), command)
                self.turns.put(turn, self._clock(), is_of_job=True)

    def turn_finished(self, job: Job, context: Context) -> None:
        """A turn of an inferred job has finished, and its reply is being read."""
        if len(context.block_hashes) <= self._start:
            return
        kind = self._kind_of(context.block_hashes)
        job.goes_on_without_call = kind.hides_calls
        is_first = job.num_turns == 1
        turn = OpenTurn.of(job, context, [kind] if is_first else [])
        if turn is not None:
            self.turns.put(turn, self._clock(), is_of_job=True)
        if is_first:
            kind.ended()

    # A job ends

    def no_tool_called(self, job: Job, now_s: float) -> None:
        """The last reply of an inferred job calls no tool: it is over if it does not go on soon."""
        grace_s = SILENCE_S if job.goes_on_without_call else GRACE_S
        entry = (now_s + grace_s, next(self._numbers), job.num_turns, job)
        heapq.heappush(self._ending, entry)

    @property
    def next_end_s(self) -> float | None:
        """When `pop_ended` may have something next."""
        return self._ending[0][0] if self._ending else None

    def pop_ended(self, now_s: float) -> Iterator[Job]:
        """Jobs that have not gone on since a reply without a tool call. O(1) if there are none.

        One whose calls cannot be read may go on all the same: its turn stays open.
        """
        while self._ending and self._ending[0][0] <= now_s:
            *_, num_turns, job = heapq.heappop(self._ending)
            if job.num_turns == num_turns and not job.live:
                turn = self.turns.get(job.job_id) if job.goes_on_without_call else None
                yield job
                if turn is not None:
                    self.turns.put(turn, now_s, is_of_job=False)

    def forget(self, job: Job) -> None:
        """A job is over, or no longer inferred."""
        self.turns.remove(job.job_id)
