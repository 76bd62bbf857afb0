"""Finds the jobs of agents that send no `job_id`, by prompts that continue an earlier turn.

A finished request whose reply calls a tool is remembered by its prompt. A later request whose
prompt starts with all of that prompt, and goes on, is the next turn of the same agent: both are
turns of one job. Runs on the engine's main thread, but for the reading of replies; knows nothing of
pins or policies.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Sequence
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
"""Tokens of a reply that distinguish samples of one prompt."""
START_TOKENS = 64
"""Tokens at the start of a prompt that distinguish kinds of requests: more than the default system
prompt of a chat template, fewer than an agent's."""
END_TOKENS = 64
"""Tokens at the end of a reply in which a tool call would be closed."""
_CLOSERS = frozenset("`~}>])")
"""Characters of which a call ends with one, in every dialect."""
MAX_KINDS = 1000
"""Kinds of requests remembered that have opened jobs."""
MAX_OUTCOMES = 64
"""Requests of a kind that count; beyond that, each counts by half as much."""
MIN_JOBS, MIN_SHARE = 4, 0.8
"""Jobs that requests of a kind must have opened, and their share, until the next one is expected to
open a job. Chosen: a request that is wrongly expected to may be held back by admission control."""
GRACE_S = 5.0
"""Seconds after a reply without a tool call in which its job may go on: an agent that could not
read a call says so sooner, a person answers later."""


@dataclass(slots=True)
class Kind:
    """Requests that start alike and continued nothing: how many ended, and opened a job."""

    num_ended: int = 0
    num_jobs: int = 0
    opens_jobs: bool = False
    """The next one is expected to open a job."""

    def ended(self) -> None:
        """A request of the kind has ended; so far nothing continues it."""
        self.num_ended += 1
        if self.num_ended > MAX_OUTCOMES:
            self.num_ended //= 2
            self.num_jobs //= 2
        self._judge()

    def continued(self) -> None:
        """One that has ended opened a job, which goes on."""
        self.num_jobs += 1
        self._judge()

    def _judge(self) -> None:
        is_usual = self.num_jobs >= MIN_SHARE * self.num_ended
        self.opens_jobs = is_usual and self.num_jobs >= MIN_JOBS


@dataclass(slots=True, eq=False)
class OpenTurn:
    """A job's last turn, which called a tool, and the tokens with which the next prompt starts.

    `last_hash` is of the last full block of its prompt that no chat template rewrites, after
    `num_hashed_tokens`; `tail` are the tokens from there on, with the first of the reply.
    """

    job: Job
    last_hash: Any
    num_hashed_tokens: int
    num_prompt_tokens: int
    tail: Sequence[int]
    kinds: Sequence[Kind]
    """Of a first turn: the kinds for which it counts once it is continued."""

    @classmethod
    def of(cls, job: Job, context: Context, kinds: Sequence[Kind]) -> OpenTurn | None:
        """The turn that ended with this context; None if its prompt fills no block."""
        num_prompt_tokens = context.num_prompt_tokens
        num_blocks = (num_prompt_tokens - MAX_REWRITTEN_TOKENS) // context.block_tokens
        if num_blocks < 1:
            return None
        num_hashed_tokens = num_blocks * context.block_tokens
        tail = context.token_ids[num_hashed_tokens : num_prompt_tokens + MAX_REPLY_TOKENS]
        last_hash = context.block_hashes[num_blocks - 1]
        return cls(job, last_hash, num_hashed_tokens, num_prompt_tokens, tail, kinds)

    def num_repeated_tokens(self, prompt: Sequence[int]) -> int:
        """Tokens with which a prompt that has `last_hash` repeats this turn."""
        start = self.num_hashed_tokens
        others = prompt[start : start + len(self.tail)]
        pairs = enumerate(zip(self.tail, others, strict=False))
        return start + next((index for index, (a, b) in pairs if a != b), len(others))

    def is_continued_by(self, prompt: Sequence[int]) -> bool:
        """True if a prompt that has `last_hash` repeats this turn's prompt and goes on.

        A job with a turn in the engine is not continued: that is a fork of it, or a retry.
        """
        if self.job.live or len(prompt) <= self.num_prompt_tokens:
            return False
        needed = self.num_prompt_tokens - MAX_REWRITTEN_TOKENS
        return self.num_repeated_tokens(prompt) >= needed


class OpenTurns:
    """The open turns of one engine, at most one a job; the oldest first."""

    def __init__(self, *, max_turns: int, lease_s: float) -> None:
        self._max_turns = max_turns
        self._lease_s = lease_s
        self._by_job: OrderedDict[str, OpenTurn] = OrderedDict()
        self._by_hash: defaultdict[Any, list[OpenTurn]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._by_job)

    def put(self, turn: OpenTurn) -> None:
        """Add a job's last turn in place of the one before; drops those that are too old, or too
        many."""
        self.remove(turn.job.job_id)
        self._by_job[turn.job.job_id] = turn
        self._by_hash[turn.last_hash].append(turn)
        now_s = turn.job.last_activity_s
        while (oldest := next(iter(self._by_job.values()))) is not turn:
            age_s = now_s - oldest.job.last_activity_s
            if age_s < self._lease_s and len(self._by_job) <= self._max_turns:
                return
            self.remove(oldest.job.job_id)

    def remove(self, job_id: str) -> None:
        """Drop a job's open turn, if there is one."""
        turn = self._by_job.pop(job_id, None)
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
        all its blocks if there is no such turn.
        """
        for block_hash in reversed(block_hashes):
            if block_hash in self._by_hash:
                turns = [
                    each
                    for each in self._by_hash[block_hash]
                    if each.job.client == client and each.is_continued_by(prompt)
                ]
                if turns:
                    return max(turns, key=lambda turn: turn.num_repeated_tokens(prompt))
        return None


@dataclass(frozen=True, slots=True)
class Opening:
    """A finished request that continued nothing; `order` is its arrival number.

    If its reply calls a tool, it may have opened a job.
    """

    request_id: str
    order: int
    finished_s: float
    context: Context
    client: str = ""

    def as_job(self, command: str) -> Job:
        """The job that it opened, whose tool runs `command` now."""
        job = Job(inferred_id(self.request_id, self.client), self.order, is_inferred=True)
        job.first_prompt_tokens = self.context.num_prompt_tokens
        job.num_turns = 1
        job.has_run = True
        context = self.context
        job.finish_turn(self.finished_s, context.num_tokens, context.checkpoints())
        job.tool = tool_name(command) or None
        job.decision = Decision(TTL(0.0, "not pinned: no job was known"), command)
        job.last_activity_s = self.finished_s
        return job


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
        block_tokens: int,
        jobs: JobTable,
        stream: EventStream,
        growth: JobGrowth,
    ) -> None:
        """`worker` reads replies; jobs that are found come into `jobs`, and `growth` learns."""
        self._jobs = jobs
        self._emit = stream.emit
        self._growth = growth
        self.is_on = settings.infer_jobs
        self.turns = OpenTurns(max_turns=settings.max_jobs, lease_s=settings.job_lease_s)
        self._worker = worker
        self._start = max(1, START_TOKENS // block_tokens) - 1
        self._kinds: OrderedDict[Any, Kind] = OrderedDict()
        self._others = Kind()
        self._ended: Opening | None = None
        self._found: deque[tuple[Opening, list[Kind], str]] = deque()
        self._ending: deque[tuple[float, int, Job]] = deque()

    # A request arrives

    def job_id_of(
        self, request_id: str, prompt: Sequence[int], block_hashes: Sequence[Any], client: str = ""
    ) -> JobKey | None:
        """Key of the job that a request without a `job_id` continues or, where such requests do,
        opens; None if it does neither."""
        if not self.may_know(block_hashes):
            return None
        job = self.job_continued_by(prompt, block_hashes, client)
        if job is None:
            expects_job = self._kind_of(block_hashes).opens_jobs
            return inferred_id(request_id, client) if expects_job else None
        if self._jobs.get(job.job_id) is None:
            self._jobs.add(job)
            self._growth.turn_ended(job.context_tokens - job.first_prompt_tokens)
        if job.num_turns == 1:  # its second turn proves it
            self._emit(Inferred, job.job_id)
        return job.job_id

    def may_know(self, block_hashes: Sequence[Any]) -> bool:
        """False if a request without a `job_id` surely belongs to no job. Two look-ups at most."""
        start = self._start
        return len(block_hashes) > start and (
            self._others.opens_jobs or block_hashes[start] in self._kinds
        )

    def job_continued_by(
        self, prompt: Sequence[int], block_hashes: Sequence[Any], client: str = ""
    ) -> Job | None:
        """The client's job whose last turn a request continues."""
        turn = self.turns.continued_by(prompt, block_hashes, client)
        if turn is None:
            return None
        for kind in turn.kinds:
            kind.continued()
        turn.kinds = ()
        return turn.job

    # A turn ends

    def request_ended(self, opening: Opening) -> None:
        """A request that continued nothing has finished, and its reply can be read."""
        if len(opening.context.block_hashes) > self._start:
            self._ended = opening

    def wants_reply(self, request_id: str) -> bool:
        """True if the request that ended last may have opened a job."""
        return self._ended is not None and self._ended.request_id == request_id

    def read(self, reply: Reply, decode: Decode) -> None:
        """Look for a tool call in the reply of the request that ended last, soon or now."""
        opening, self._ended = self._ended, None
        assert opening is not None
        kinds = self._count_ended(opening.context)

        def look() -> None:
            if _CLOSERS.isdisjoint(decode(reply.token_ids[-END_TOKENS:])):
                return
            command = command_of_reply(reply, decode)
            if command is not None:
                self._found.append((opening, kinds, command))

        self._worker.do(look, opening.client)

    def take_found(self) -> None:
        """Remember the turns that were found to call a tool. O(1) if there are none."""
        while self._found:
            opening, kinds, command = self._found.popleft()
            self._put(opening.as_job(command), opening.context, kinds)

    def turn_finished(self, job: Job, context: Context) -> None:
        """A turn of an inferred job has finished, and its reply is being read."""
        self._put(job, context, self._count_ended(context) if job.num_turns == 1 else [])

    def _count_ended(self, context: Context) -> list[Kind]:
        """Count a request that continued nothing; returns the kinds it counts for."""
        kind = self._kind_of(context.block_hashes)
        kind.ended()
        return [kind]

    def _kind_of(self, block_hashes: Sequence[Any]) -> Kind:
        return self._kinds.get(block_hashes[self._start], self._others)

    def _put(self, job: Job, context: Context, kinds: list[Kind]) -> None:
        turn = OpenTurn.of(job, context, kinds)
        if turn is None:
            return
        start_hash = context.block_hashes[self._start]
        kind = self._kinds.get(start_hash)
        if kind is None:
            kind = self._kinds[start_hash] = Kind()
            kind.ended()
            kinds.append(kind)
            if len(self._kinds) > MAX_KINDS:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(start_hash)
        self.turns.put(turn)

    # A job ends

    def no_tool_called(self, job: Job, now_s: float) -> None:
        """The last reply of an inferred job calls no tool: it is over if it does not go on soon."""
        self._ending.append((now_s + GRACE_S, job.num_turns, job))

    @property
    def next_end_s(self) -> float | None:
        """When `pop_ended` may have something next."""
        return self._ending[0][0] if self._ending else None

    def pop_ended(self, now_s: float) -> Iterator[Job]:
        """Jobs that have not gone on since a reply without a tool call. O(1) if there are none."""
        while self._ending and self._ending[0][0] <= now_s:
            _, num_turns, job = self._ending.popleft()
            if job.num_turns == num_turns and not job.live:
                yield job

    def forget(self, job: Job) -> None:
        """A job is over, or no longer inferred."""
        self.turns.remove(job.job_id)
