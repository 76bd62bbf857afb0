"""Compares what each turn was expected to find in the cache with what it found, and says why.

A watcher on the engine's main thread; it emits Reused. One record for each job, kept beyond the
job's end, so that a job that goes on after its release learns why; bounded in jobs and bytes. Knows
blocks by their hashes only. Each event is O(1), or O(log blocks) for a prompt that diverges.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from agentkv.events import (
    Aborted,
    Admitted,
    Arrived,
    CacheReset,
    Closed,
    Finished,
    Resumed,
    Reused,
    Trimmed,
    Unpinned,
)
from agentkv.policies.jobs import Prompt, Turn
from agentkv.policies.pins import ENDINGS, MissReason, PinEnd
from agentkv.protocol import JobKey
from agentkv.watchers import EventStream

from ..retention import Host
from ..retention.background import BackgroundWorker
from .counters import Counters
from .divergence import Difference
from .explanations import Miss
from .job_view import JobTokens

MAX_JOBS = 20_000
"""Jobs remembered, of 500 to 1,100 bytes each."""
MAX_COMPARED = 1000
"""Jobs among which the worst ones are looked for, so that a question does not stop the engine."""
MAX_PROMPT_BYTES = 64 << 20
"""Of block hashes, and of tokens if prompts may be shown, kept of last turns over all jobs; without
them a divergence is found less exactly."""
HASH_BYTES = 80
"""Of one block hash: 32 bytes as a Python object in a list."""
TOKEN_BYTES = 40
"""Of one token, likewise."""
MAX_WAITING = 16
"""Prompts that wait for the background thread to be compared."""


@dataclass(slots=True)
class LastPin:
    """Says when and why a job's KV, or the last part of it, was pinned no longer."""

    end: PinEnd
    at_s: float
    ttl_s: float | None = None
    taken_by: str | None = None
    """Key of the job whose request took it; "" for a request without a job."""


@dataclass(slots=True)
class LeftContext:
    """Remembers what a job's last finished turn left in the cache."""

    num_tokens: int
    num_prompt_tokens: int
    first_prompt_tokens: int
    finished_s: float
    cache_keys: int | None
    num_blocks: int = 0
    undecided_ttl_s: float = 0.0
    block_hashes: Sequence[Any] = ()
    """Empty if they were dropped."""
    token_ids: Sequence[int] = ()
    """Of its prompt and reply; only if prompts may be shown."""
    num_bytes: int = 0
    """Of its hashes and tokens."""
    last_pin: LastPin | None = None

    def common_blocks(self, block_hashes: Sequence[Any]) -> int | None:
        """Count the blocks that a prompt shares with it; None if its hashes are not known any more.

        Each hash covers all blocks before it, so that a binary search finds the first difference.
        """
        if not (known := self.block_hashes):
            return None
        blocks = range(min(len(known), len(block_hashes)))
        return bisect_left(blocks, True, key=lambda block: known[block] != block_hashes[block])


@dataclass(slots=True)
class JobRecord:
    """Holds the tokens of one job, and what its last turn left."""

    tokens: JobTokens = field(default_factory=JobTokens)
    left: LeftContext | None = None
    cache_keys: int | None = None
    """Hash of those of the turn that was admitted last: a client may send a salt of any length."""


class WaitingTurn(NamedTuple):
    """Holds what is known of a turn when it arrives."""

    number: int
    prompt: Prompt
    left: LeftContext | None
    """What it may find; None for a first turn or a side request."""
    tool: Mapping[str, Any]
    """The tool between the two turns, its seconds, and those predicted."""


class MissWatcher:
    """Finds the misses of all jobs; remembers the most recent ones."""

    def __init__(
        self,
        host: Host,
        counters: Counters,
        stream: EventStream,
        worker: BackgroundWorker,
        *,
        shows_prompts: bool = False,
    ) -> None:
        """Have `worker` decode what prompts differ in, if they may be shown."""
        self.total = JobTokens()
        """Of all jobs."""
        self._counters = counters
        self._host = host
        self._emit = stream.emit
        self._jobs: OrderedDict[JobKey, JobRecord] = OrderedDict()
        self._waiting: dict[str, WaitingTurn] = {}
        """By request, from its arrival to its first blocks or its end."""
        self._worker = worker
        self.shows_prompts = shows_prompts
        self._prompts: OrderedDict[JobKey, LeftContext] = OrderedDict()
        """What last turns left, as far as hashes or tokens are kept."""
        self._prompt_bytes = 0
        self._may_wait = threading.BoundedSemaphore(MAX_WAITING)
        self._reset_s = 0.0

    # A turn arrives, and has blocks

    def on_arrived(self, event: Arrived) -> None:
        turn, job, record = event.turn, event.turn.job, self._jobs.get(event.job_id)
        left = None if record is None or turn.is_side_request else record.left
        tool: Mapping[str, Any] = {}
        if left is not None:
            known, measured_s = job.decision, event.tags.last_tool_s
            tool = {
                "tool": job.tool,
                "tool_s": turn.arrived_s - left.finished_s if measured_s is None else measured_s,
                "predicted_s": None if known is None else known.p50_s,
            }
        number = event.tags.turn or job.num_turns
        self._waiting[turn.request_id] = WaitingTurn(number, event.prompt, left, tool)

    def on_admitted(self, event: Admitted) -> None:
        turn, waiting = event.turn, self._waiting.pop(event.turn.request_id, None)
        if waiting is None:
            return
        record, left, pool = self._record_of(event.job_id), waiting.left, self._host.pool
        record.cache_keys = hash(waiting.prompt.cache_keys)
        # vLLM computes at least the last token
        most = (turn.num_prompt_tokens - 1) // pool.block_tokens * pool.block_tokens
        most = 0 if left is None else min(left.num_tokens, most)
        expected_tokens = max(0, most - pool.dropped_tokens)
        for tokens in (record.tokens, self.total):
            tokens.expected_tokens += expected_tokens
            if not turn.is_side_request:
                tokens.add_prompt(turn.num_prompt_tokens, turn.hit_tokens, is_later=turn.is_later)
        if left is not None:
            miss = None
            if turn.hit_tokens < expected_tokens:
                miss = self._miss(record, turn, waiting, left, most)
            self._emit(Reused, event.job_id, waiting.number, expected_tokens, miss)

    def _miss(
        self, record: JobRecord, turn: Turn, waiting: WaitingTurn, left: LeftContext, most: int
    ) -> Miss | None:
        """Count what was lost of the first `most` tokens; returns the larger of what diverged and
        what had left the cache."""
        pool, same = self._host.pool, self._same_tokens(turn, waiting.prompt, left, most)
        same_units = same if pool.has_one_group or same == most else 0
        could_hit = max(0, same_units - pool.dropped_tokens)
        num_gone = max(0, could_hit - turn.hit_tokens)
        num_diverged = max(0, most - pool.dropped_tokens - max(could_hit, turn.hit_tokens))
        if num_diverged:
            self._add_miss(record, "diverged", num_diverged)
        gone = self._gone(turn, left, waiting.tool, num_gone) if num_gone else None
        if gone is not None:
            self._add_miss(record, gone.reason, num_gone)
        if num_diverged <= num_gone:
            return gone
        return self._diverged(turn, waiting.prompt, left, same, num_diverged)

    def _same_tokens(self, turn: Turn, prompt: Prompt, left: LeftContext, most: int) -> int:
        """Count the tokens, in whole blocks, that a prompt shares with what was left."""
        if turn.common_tokens >= most:
            return most
        num_blocks = left.common_blocks(prompt.block_hashes)
        if num_blocks is not None:
            return min(num_blocks * self._host.pool.block_tokens, most)
        # a new job knows nothing of the old one
        return most if turn.job.finished_s is None else turn.common_tokens

    def _diverged(
        self, turn: Turn, prompt: Prompt, left: LeftContext, same_tokens: int, num_tokens: int
    ) -> Miss:
        """Say where the prompt differs behind the tokens that are the same, and what that tells."""
        has_other_keys = hash(prompt.cache_keys) != left.cache_keys
        within = self._host.pool.block_tokens
        kind = "start" if same_tokens < left.first_prompt_tokens else "history"
        if has_other_keys:
            kind = "cache_keys"
        elif same_tokens + within > left.num_prompt_tokens:
            kind = "reply"
        elif len(prompt.token_ids) < left.num_prompt_tokens:
            kind = "compacted"
        facts = {"diverged_at": same_tokens, "of_tokens": left.num_tokens, "kind": kind}
        miss = Miss("diverged", num_tokens, facts)
        is_shown = left.token_ids and not has_other_keys
        if is_shown and self._may_wait.acquire(blocking=False):
            known = left.token_ids, left.num_prompt_tokens, left.first_prompt_tokens
            difference = Difference(same_tokens, within, *known, prompt.token_ids)
            describe, forget = partial(self._describe, miss, difference), self._may_wait.release
            self._worker.do(describe, turn.job.client, or_else=forget)
        return miss

    def _add_miss(self, record: JobRecord, reason: MissReason, num_tokens: int) -> None:
        for tokens in (record.tokens, self.total):
            tokens.recomputed_tokens[reason] += num_tokens
        self._counters.add("recomputed_tokens_total", "reason", reason, num_tokens)

    def _describe(self, miss: Miss, difference: Difference) -> None:
        self._may_wait.release()
        miss.facts = {**miss.facts, **difference.described(self._host.decode)}

    def _gone(
        self, turn: Turn, left: LeftContext, tool: Mapping[str, Any], num_tokens: int
    ) -> Miss:
        pin = left.last_pin
        if left.finished_s <= self._reset_s:  # equal if it ended in the pause
            ago_s = max(0.0, turn.arrived_s - self._reset_s)
            return Miss("reset", num_tokens, {"evicted_ago_s": ago_s})
        if pin is None:
            # It was never pinned, or is missing although it was.
            reason: MissReason = "other" if left.num_blocks else "ttl"
            return Miss(reason, num_tokens, {**tool, "ttl_s": left.undecided_ttl_s})
        facts = {
            **tool,
            "ttl_s": left.undecided_ttl_s if pin.ttl_s is None else pin.ttl_s,
            "ended_by": pin.end,
            # negative where memory went while the turn waited
            "evicted_ago_s": max(0.0, turn.arrived_s - pin.at_s),
        }
        return Miss(ENDINGS[pin.end].miss or "other", num_tokens, facts, pin.taken_by)

    def on_resumed(self, event: Resumed) -> None:
        record, turn = self._jobs.get(event.job_id), event.turn
        num_tokens = turn.num_prompt_tokens - event.hit_tokens
        if record is not None and num_tokens > 0:
            reason: MissReason = "reset" if turn.was_reset else "pressure"
            self._add_miss(record, reason, num_tokens)

    # A turn ends, and what it left is let go

    def on_finished(self, event: Finished) -> None:
        turn, context = event.turn, event.context
        if turn.is_side_request:
            return
        record = self._record_of(event.job_id)
        for tokens in (record.tokens, self.total):
            tokens.output_tokens += event.output_tokens
        self._forget_prompt(event.job_id)
        ttl, job = turn.ttl, turn.job
        token_ids = context.token_ids if self.shows_prompts else ()
        record.left = left = LeftContext(
            job.usable_tokens,
            context.num_prompt_tokens,
            job.first_prompt_tokens,
            job.finished_s or 0.0,
            record.cache_keys,
            event.num_blocks,
            0.0 if ttl is None else ttl.seconds,
            context.block_hashes,
            token_ids,
            len(context.block_hashes) * HASH_BYTES + len(token_ids) * TOKEN_BYTES,
        )
        self._prompts[event.job_id] = left
        self._prompt_bytes += left.num_bytes
        while self._prompt_bytes > MAX_PROMPT_BYTES:
            self._forget_prompt(next(iter(self._prompts)))

    def on_aborted(self, event: Aborted) -> None:
        waited = self._waiting.pop(event.turn.request_id, None) is not None
        if not (waited or event.is_held):
            self._let_go(event.job_id, "aborted")

    def on_unpinned(self, event: Unpinned) -> None:
        if event.reason != "returned":
            self._let_go(event.job_id, event.reason, event)

    def on_trimmed(self, event: Trimmed) -> None:
        if event.taken_by is not None:
            self._let_go(event.job_id, "pressure", event)

    def _let_go(self, job_id: JobKey, end: PinEnd, of: Unpinned | Trimmed | None = None) -> None:
        """Note when and why a pin ended, or a job, or its turn, whose KV did not go before."""
        record = self._jobs.get(job_id)
        if record is not None and (left := record.left) is not None:
            if of is not None:
                left.last_pin = LastPin(end, self._host.clock(), of.pin.ttl_s, of.taken_by)
            elif left.last_pin is None:
                left.last_pin = LastPin(end, self._host.clock())

    def on_closed(self, event: Closed) -> None:
        """Drop the tokens of a job that is over."""
        self._let_go(event.job_id, event.reason)
        left = self._prompts.get(event.job_id)
        if left is not None:
            num_freed = len(left.token_ids) * TOKEN_BYTES
            left.token_ids = ()
            left.num_bytes -= num_freed
            self._prompt_bytes -= num_freed

    def on_cache_reset(self, event: CacheReset) -> None:
        self._reset_s = self._host.clock()

    # What is shown

    def tokens_of(self, job_id: str) -> dict[str, Any]:
        """Return the tokens of a job as plain data; zeros for one that is not remembered."""
        record = self._jobs.get(JobKey.read(job_id))
        return (JobTokens() if record is None else record.tokens).as_dict()

    def knows(self, job_id: JobKey) -> bool:
        """Tell whether a turn of the job was admitted, and it is remembered."""
        return job_id in self._jobs

    def worst(self, client: str | None, most: int) -> list[JobKey]:
        """Return the jobs of a client (None: of all) that computed the most tokens again.

        They are looked for among the MAX_COMPARED last active ones."""
        found = [
            (sum(record.tokens.recomputed_tokens.values()), key)
            for key, record in islice(reversed(self._jobs.items()), MAX_COMPARED)
            if client is None or key.client == client
        ]
        return [key for _, key in sorted(found, key=lambda each: -each[0])[:most]]

    # Bounds

    def _record_of(self, job_id: JobKey) -> JobRecord:
        record = self._jobs.get(job_id)
        if record is None:
            record = self._jobs[job_id] = JobRecord()
            if len(self._jobs) > MAX_JOBS:
                forgotten, _ = self._jobs.popitem(last=False)
                self._forget_prompt(forgotten)
        else:
            self._jobs.move_to_end(job_id)
        return record

    def _forget_prompt(self, job_id: JobKey) -> None:
        left = self._prompts.pop(job_id, None)
        if left is not None:
            self._prompt_bytes -= left.num_bytes
            left.block_hashes = left.token_ids = ()
            left.num_bytes = 0
