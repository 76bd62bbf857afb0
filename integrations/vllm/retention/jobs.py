"""All jobs that the engine remembers, and the turns that have ended, which a prompt may continue.

RetentionManager keeps the jobs, JobInference the turns. Knows nothing of pins, policies' rules or
vLLM; times are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

import itertools
import math
from array import array
from bisect import bisect_left
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentkv.policies.jobs import Context, Job, Turn
from agentkv.policies.pins import Pin

from . import Host
from .predictor import Decode

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
RUN_CHARS, MAX_TEXT_TOKENS, MAX_TEXTS = 12, 96, 4
"""Where no tokens prove it, a model may have written the reply in other tokens than its tokenizer
does: that many characters in a row, in the text of that many tokens, of that many turns."""
MAX_PREFIXES = 16
"""Earlier prompts, the longest first, with which a prompt may begin that are looked at."""
MAX_OUTCOMES = 64
"""Requests of a kind that count; beyond that, each counts by half as much."""
MIN_JOBS, MIN_SHARE = 4, 0.8
"""Jobs that requests of a kind must have opened, and their share, until the next one is expected to
open a job. Chosen: a request that is wrongly expected to may be held back by admission control."""
MAX_ENDED, ENDED_LEASE_S = 4096, 300.0
"""Finished requests of no job that are remembered, and for how long: 3 KiB each."""
MAX_SIBLINGS = 128
"""Open turns remembered of prompts that are equal up to their last full block."""
MAX_SUB_AGENTS = 4
"""Sub-agents that share their parent's place in the queue at a time; a further one is a new job."""
MAX_NAMED = 100
"""Jobs of different clients found by one id that they share."""
MAX_SPARED = 64
"""Jobs looked at for one to forget that has had one turn and holds no KV."""


class JobTable:
    """All jobs remembered, the longest idle first, and their turns; operations are O(clients)."""

    def __init__(
        self,
        *,
        max_jobs: int,
        lease_s: float,
        is_pinned: Callable[[str], bool] = lambda job_id: False,
    ) -> None:
        self.turns: dict[str, Turn] = {}
        """Turns in the engine, by request."""
        self._max_jobs = max_jobs
        self._lease_s = lease_s
        self._is_pinned = is_pinned
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._by_client: dict[str, OrderedDict[str, Job]] = {}
        self._by_own_id: dict[str, OrderedDict[str, Job]] = {}
        self._short: dict[str, OrderedDict[str, Job]] = {}
        """Jobs of one turn, by client."""

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def latest(self, client: str | None) -> Iterator[Job]:
        """The jobs of one client, or of all, the last active first."""
        jobs = self._jobs if client is None else self._by_client.get(client, OrderedDict())
        return reversed(jobs.values())

    def num_of(self, client: str | None) -> int:
        """Jobs of one client, or of all."""
        return len(self._jobs if client is None else self._by_client.get(client, ()))

    def get(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id)

    def named(self, own_id: str) -> list[Job]:
        """The MAX_NAMED latest jobs of all clients with this id."""
        return [
            *itertools.islice(
                reversed(self._by_own_id.get(own_id, OrderedDict()).values()), MAX_NAMED
            )
        ]

    def add(self, job: Job) -> None:
        self._jobs[job.job_id] = job
        self._by_client.setdefault(job.client, OrderedDict())[job.job_id] = job
        self._by_own_id.setdefault(job.own_id, OrderedDict())[job.job_id] = job
        if job.num_turns <= 1:
            self._short.setdefault(job.client, OrderedDict())[job.job_id] = job

    def touch(self, job: Job, now_s: float) -> None:
        """Note a sign of life: a turn's arrival or end, or a tool signal."""
        job.last_activity_s = now_s
        self._jobs.move_to_end(job.job_id)
        self._by_client[job.client].move_to_end(job.job_id)
        short = self._short.get(job.client)
        if short is not None and job.job_id in short:
            if job.num_turns > 1:
                del short[job.job_id]
            else:
                short.move_to_end(job.job_id)

    def lender(self, parent_id: str, job: Job | None) -> Job | None:
        """The job in whose place a sub-agent's stands: that of its parent, or the parent's lender.

        A parent is another job, of which a turn has run. It lends its place to MAX_SUB_AGENTS at a
        time, of those that wait, run or are pinned.
        """
        parent = self._jobs.get(parent_id)
        if parent is None or parent is job or not parent.has_run:
            return None
        if job is not None and (job.lender is not None or job.has_run):
            return job.lender
        lender = parent.lender or parent
        for job_id, other in list(lender.borrowers.items()):
            if not other.live and not self._is_pinned(job_id):
                del lender.borrowers[job_id]
        return lender if len(lender.borrowers) < MAX_SUB_AGENTS else None

    def remove(self, job: Job) -> None:
        self._jobs.pop(job.job_id, None)
        by_name = (self._by_client, job.client), (self._short, job.client)
        for index, name in (*by_name, (self._by_own_id, job.own_id)):
            jobs = index.get(name)
            if jobs is not None:
                jobs.pop(job.job_id, None)
                if not jobs:
                    del index[name]

    @property
    def next_lease_s(self) -> float:
        """When the lease of the longest idle job is over; infinity without one, or while it has a
        request in the engine. O(1)."""
        oldest = next(iter(self._jobs.values()), None)
        if oldest is None or oldest.live:
            return math.inf
        return oldest.last_activity_s + self._lease_s

    def may_forget(self, now_s: float) -> bool:
        """True if `next_to_forget` may have a job. O(1)."""
        if len(self._jobs) > self._max_jobs:
            return True
        oldest = next(iter(self._jobs.values()), None)
        return oldest is not None and now_s - oldest.last_activity_s >= self._lease_s

    def next_to_forget(self, now_s: float) -> Job | None:
        """The job to forget now: idle beyond its lease, or one too many. None if there is none.

        Of too many jobs one of the client that has most goes: one with a single turn and no pin
        if there is any among the longest idle, else the longest idle. A job with a request in the
        engine is never forgotten.
        """
        oldest = self._longest_idle(self._jobs, 1)
        if oldest is not None and now_s - oldest.last_activity_s >= self._lease_s:
            return oldest
        if len(self._jobs) <= self._max_jobs:
            return None
        client, jobs = max(self._by_client.items(), key=lambda entry: len(entry[1]))
        short = self._longest_idle(
            self._short.get(client, OrderedDict()), MAX_SPARED, self._is_pinned
        )
        return short or self._longest_idle(jobs, MAX_SPARED)

    @staticmethod
    def _longest_idle(
        jobs: OrderedDict[str, Job],
        most: int,
        is_spared: Callable[[str], bool] = lambda job_id: False,
    ) -> Job | None:
        """The first of up to `most` jobs without a request in the engine that is not spared."""
        for _ in range(min(most, len(jobs))):
            job = next(iter(jobs.values()))
            if not job.live and not is_spared(job.job_id):
                return job
            jobs.move_to_end(job.job_id)
        return None


class RetainedEngine:
    """The engine as its policy may look at it: an EngineView."""

    def __init__(
        self,
        host: Host,
        jobs: JobTable,
        pins: Collection[Pin[Any]],
        service: Mapping[str, float],
    ) -> None:
        self.num_blocks = host.pool.num_blocks
        self.block_tokens = host.pool.block_tokens
        self.jobs: Iterable[Job] = jobs
        self.turns: Collection[Turn] = jobs.turns.values()
        self.pins = pins
        self.service = service
        self.job = jobs.get
        self._host = host

    @property
    def now_s(self) -> float:
        return self._host.clock()

    @property
    def num_free_blocks(self) -> int:
        return self._host.num_free_blocks()


def _packed(tokens: Sequence[int]) -> bytes:
    return array("i", tokens).tobytes()


_TOKEN_BYTES = array("i").itemsize
_REWRITTEN_BYTES = MAX_REWRITTEN_TOKENS * _TOKEN_BYTES


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


@dataclass(slots=True, eq=False)
class OpenTurn:
    """The last turn of a job, or of what may become one, and what a next prompt repeats of it."""

    job: Job
    last_hash: Any
    """Of the last full block of its prompt that no chat template rewrites."""
    num_hashed_tokens: int
    num_prompt_tokens: int
    prompt_end: bytes
    """The prompt's tokens from there on, but for those that may be rewritten."""
    reply: bytes
    """Those, and the first tokens of the reply."""
    reply_end: bytes
    kinds: Sequence[Kind]
    """The kinds for which a first turn counts once it is continued."""

    @classmethod
    def of(cls, job: Job, context: Context, kinds: Sequence[Kind] = ()) -> OpenTurn | None:
        """The turn that ended with this context; None if its prompt fills no block."""
        tokens, num_prompt_tokens = context.token_ids, context.num_prompt_tokens
        num_fixed_tokens = num_prompt_tokens - MAX_REWRITTEN_TOKENS
        num_blocks = num_fixed_tokens // context.block_tokens
        if num_blocks < 1:
            return None
        num_hashed_tokens = num_blocks * context.block_tokens
        end_start = max(num_prompt_tokens, len(tokens) - MAX_REPLY_TOKENS)
        return cls(
            *(job, context.block_hashes[num_blocks - 1], num_hashed_tokens, num_prompt_tokens),
            _packed(tokens[num_hashed_tokens:num_fixed_tokens]),
            _packed(tokens[num_fixed_tokens : num_prompt_tokens + MAX_REPLY_TOKENS]),
            _packed(tokens[end_start:]),
            kinds,
        )

    @property
    def has_call(self) -> bool:
        """A tool call was read in its reply: that the prompt is repeated is proof enough."""
        decision = self.job.decision
        return decision is not None and decision.command is not None

    def rest_behind(self, num_tokens: int, rest: bytes) -> bytes | None:
        """What a prompt of `num_tokens`, of which `rest` is behind `last_hash`, has behind this
        turn's; None if it does not repeat that and go on.

        A job with a turn in the engine is not continued: that is a fork of it, or a retry.
        """
        if self.job.live or num_tokens <= self.num_prompt_tokens:
            return None
        return rest[len(self.prompt_end) :] if rest.startswith(self.prompt_end) else None

    def num_repeated_bytes(self, behind: bytes) -> int:
        """Bytes of the reply with which what is behind the prompt starts."""
        sizes = range(1, len(self.reply) + 1)
        return bisect_left(sizes, True, key=lambda size: not behind.startswith(self.reply[:size]))

    def is_reply_in(self, behind: bytes) -> bool:
        """True if the tokens of the reply's start or end are behind the prompt."""
        start = self.reply[_REWRITTEN_BYTES:]
        num_tokens = len(start) // _TOKEN_BYTES
        size = min(RUN_TOKENS, max(1, num_tokens - 1)) * _TOKEN_BYTES  # the last ends the turn
        return any(
            part[at : at + size] in behind
            for part in (start, self.reply_end)
            for at in range(0, len(part) - size + 1, _TOKEN_BYTES)
        )

    def is_text_in(self, behind: bytes, decode: Decode) -> bool:
        """True if text of the reply's start is behind the prompt."""
        text = decode(array("i", behind[: MAX_TEXT_TOKENS * _TOKEN_BYTES]).tolist())
        reply = decode(array("i", self.reply[_REWRITTEN_BYTES:-_TOKEN_BYTES]).tolist())
        size = min(RUN_CHARS, len(reply))
        starts = range(len(reply) - size + 1) if size else ()
        return any(reply[at : at + size] in text for at in starts)


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
        self, prompt: Sequence[int], block_hashes: Sequence[Any], client: str, decode: Decode | None
    ) -> OpenTurn | None:
        """The turn of this client that a prompt continues: of several the one it repeats most of,
        then the oldest.

        One look-up for each block of the prompt that is new since that turn's prompt; for each of
        all its blocks, 0.03 microseconds each, if there is no such turn.
        """
        known = filter(self._by_hash.__contains__, reversed(block_hashes))
        for block_hash in itertools.islice(known, MAX_PREFIXES):
            siblings = self._by_hash[block_hash]
            start = siblings[0].num_hashed_tokens
            rest = _packed(prompt[start : start + MAX_SEARCHED_TOKENS])
            parts = {
                turn: part
                for turn in siblings
                if turn.job.client == client
                and (part := turn.rest_behind(len(prompt), rest)) is not None
            }
            proven = [turn for turn in parts if turn.has_call or turn.is_reply_in(parts[turn])]
            if decode is not None and not proven:
                latest = list(parts)[-MAX_TEXTS:]
                proven = [turn for turn in latest if turn.is_text_in(parts[turn], decode)]
            if proven:
                return max(proven, key=lambda turn: turn.num_repeated_bytes(parts[turn]))
        return None
