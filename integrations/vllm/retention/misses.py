"""What each turn of a job was expected to find in the cache, what it found, and why not all of it.

RetentionManager reports turns and ends of pins. One record for each job, kept beyond the job's end,
so that a job that goes on after its release is told why; bounded in jobs, turns and bytes. Knows
blocks by their hashes only. Each call is O(1), or O(log blocks) for a prompt that diverges.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentkv.policies.jobs import Turn
from agentkv.policies.pins import Pin, PinEnd
from agentkv.protocol import Tags, client_and_id

from ..telemetry.counters import Counters
from ..telemetry.savings import MissReason, Savings, SavingsTally
from . import Host
from .costs import RestoreCostModel
from .jobs import Context

MAX_TURNS = 50_000
"""Turns remembered over all jobs, of 100 to 500 bytes each."""
MAX_TURNS_OF_JOB = 64
MAX_HASH_BYTES = 64 << 20
"""Bytes of block hashes kept over all jobs; without them a divergence is found less exactly."""
HASH_BYTES = 80
"""Of one block hash: 32 bytes as a Python object in a list."""
REASONS: dict[str, MissReason] = {
    "pressure": "pressure",
    "expired": "ttl",
    "slow": "ttl",
    "no_tool_call": "ttl",
    "released": "released",
    "last_step": "released",
    "reset": "reset",
}
"""What the end of a pin, or of a job, means for tokens that are gone; `other` for the rest."""


@dataclass(slots=True)
class LetGo:
    """When and why a job's KV, or the last part of it, was held no longer."""

    why: str
    """A `PinEnd`, or the reason for which the job was closed."""
    at_s: float
    ttl_s: float | None = None
    taken_by: str | None = None
    """Key of the job whose request took it; "" for a request without a job."""


@dataclass(slots=True)
class LeftContext:
    """What a job's last finished turn left in the cache."""

    num_tokens: int
    num_prompt_tokens: int
    first_prompt_tokens: int
    finished_s: float
    cache_keys: object
    idle_blocks: int
    """Blocks that no request held just before, in the free queue or pinned."""
    allocated_blocks: int
    """Blocks that the engine had allocated until then."""
    num_blocks: int = 0
    num_exclusive_blocks: int = 0
    """The last of them, which no other request or pin holds."""
    undecided_ttl_s: float = 0.0
    block_hashes: Sequence[Any] | None = None
    let_go: LetGo | None = None

    def tokens_in_stock(self, allocated_blocks: int, block_tokens: int) -> int:
        """How many of its tokens stock would still have, now that so many blocks were allocated.

        Stock would have put the blocks into its free queue when the turn ended, the last one first,
        behind all that were idle then, and each allocation takes the head of the queue. Rather too
        many: blocks ahead that leave the queue by a hit are not counted, nor what stock would
        compute a second time.
        """
        passed = allocated_blocks - self.allocated_blocks - self.idle_blocks
        num_lost = max(0, min(passed, self.num_exclusive_blocks))
        if not num_lost:
            return self.num_tokens
        share = (self.num_blocks - num_lost) / self.num_blocks
        return int(self.num_tokens * share) // block_tokens * block_tokens

    def common_blocks(self, block_hashes: Sequence[Any]) -> int | None:
        """Blocks that a prompt shares with it; None if its hashes are no longer known.

        Each hash covers all blocks before it, so that a binary search finds the first difference.
        """
        known = self.block_hashes
        if known is None:
            return None
        low, high = 0, min(len(known), len(block_hashes))
        while low < high:
            middle = (low + high) // 2
            if known[middle] == block_hashes[middle]:
                low = middle + 1
            else:
                high = middle
        return low


@dataclass(slots=True)
class Miss:
    """Why a turn computed tokens again that were expected in the cache."""

    reason: MissReason
    num_tokens: int
    facts: dict[str, Any]
    taken_by: str | None = None

    def as_dict(self, viewer: str | None) -> dict[str, Any]:
        """Return it as plain data; `viewer` is the client that asks, None sees all jobs."""
        shown = {"reason": self.reason, "tokens": self.num_tokens, **self.facts}
        if self.taken_by is not None:
            client, own_id = client_and_id(self.taken_by)
            if not self.taken_by:
                shown["taken_by"] = "a request without a job"
            else:
                is_visible = viewer is None or client == viewer
                shown["taken_by"] = own_id if is_visible else "another client's job"
        return shown


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One admitted turn, and what it found of what it was expected to find."""

    turn: int
    prompt_tokens: int
    expected_tokens: int
    hit_tokens: int
    kept_tokens: int
    miss: Miss | None = None

    def as_dict(self, viewer: str | None) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "turn": self.turn,
            "prompt_tokens": self.prompt_tokens,
            "expected_tokens": self.expected_tokens,
            "hit_tokens": self.hit_tokens,
            "kept_tokens": self.kept_tokens,
            "miss": None if self.miss is None else self.miss.as_dict(viewer),
        }


@dataclass(slots=True)
class JobRecord:
    """The last turns of one job, their sums, and what the last one left."""

    savings: Savings = field(default_factory=Savings)
    turns: deque[TurnRecord] = field(default_factory=deque)
    left: LeftContext | None = None
    cache_keys: object = None
    """Of the turn that was admitted last."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """What is known of a turn's expected hit when it arrives."""

    turn: int
    left: LeftContext | None
    expected_tokens: int = 0
    common_tokens: int = 0
    diverged_at: int | None = None
    cache_keys: object = None
    tool: str | None = None
    tool_s: float | None = None
    predicted_s: float | None = None


class TurnHistory:
    """The records of all jobs of one engine, the least recently active job first."""

    def __init__(self, host: Host, costs: RestoreCostModel, counters: Counters) -> None:
        self.tally = SavingsTally(counters)
        self._host = host
        self._costs = costs
        self._jobs: OrderedDict[str, JobRecord] = OrderedDict()
        self._num_turns = 0
        self._arrivals: dict[str, Arrival] = {}
        """By request, from its arrival to its first blocks or its end."""
        self._hashed: OrderedDict[str, LeftContext] = OrderedDict()
        self._num_hashes = 0
        self._step_allocated_blocks = 0
        self._reset_s = 0.0

    # Turns

    def step_begins(self) -> None:
        """Requests that this step admits find in the cache what was there at its beginning."""
        self._step_allocated_blocks = self._host.num_allocated_blocks

    def turn_arrived(
        self, turn: Turn, tags: Tags, block_hashes: Sequence[Any], cache_keys: object
    ) -> None:
        """Note what the turn should find; `cache_keys` are what the block hashes contain apart
        from tokens: LoRA and salt."""
        job = turn.job
        record = self._jobs.get(job.job_id)
        left = None if record is None or turn.is_side_request else record.left
        if left is None:
            arrival = Arrival(tags.turn or job.num_turns, None, cache_keys=cache_keys)
        else:
            arrival = self._compared(turn, left, tags, block_hashes, cache_keys)
        self._arrivals[turn.request_id] = arrival

    def _compared(
        self,
        turn: Turn,
        left: LeftContext,
        tags: Tags,
        block_hashes: Sequence[Any],
        cache_keys: object,
    ) -> Arrival:
        pool, job = self._host.pool, turn.job
        block_tokens = pool.block_tokens
        # vLLM computes at least the last token, and with EAGLE the last block of a hit, too
        most = (turn.num_prompt_tokens - 1) // block_tokens * block_tokens
        dropped = block_tokens if pool.drops_last_block else 0
        expected = min(left.num_tokens, most)
        common = expected
        if turn.common_tokens < expected:
            num_blocks = left.common_blocks(block_hashes)
            exact = turn.common_tokens if num_blocks is None else num_blocks * block_tokens
            common = min(exact, expected)
        known = job.decision
        gap_s = turn.arrived_s - left.finished_s
        return Arrival(
            tags.turn or job.num_turns,
            left,
            max(0, expected - dropped),
            max(0, common - dropped),
            common if common < expected else None,
            cache_keys,
            job.tool,
            gap_s if tags.last_tool_s is None else tags.last_tool_s,
            None if known is None else known.p50_s,
        )

    def turn_admitted(self, turn: Turn) -> None:
        """The turn has its first blocks."""
        arrival = self._arrivals.pop(turn.request_id, None)
        if arrival is None:
            return
        record = self._record_of(turn.job.job_id)
        record.cache_keys = arrival.cache_keys
        hit_tokens = max(0, turn.hit_tokens - turn.loaded_tokens)
        left, kept_tokens, kept_s = arrival.left, 0, 0.0
        if left is not None:
            in_stock = left.tokens_in_stock(
                self._step_allocated_blocks, self._host.pool.block_tokens
            )
            left.num_exclusive_blocks = 0  # from now on a request holds them in stock as well
            of_job = min(hit_tokens, arrival.common_tokens)
            kept_tokens = max(0, of_job - in_stock)
            if kept_tokens:
                reload = self._costs.step_time.reload
                kept_s = reload.seconds(of_job) - reload.seconds(in_stock)
        self.tally.add_hit(
            record.savings, arrival.expected_tokens, kept_tokens, hit_tokens - kept_tokens, kept_s
        )
        self._keep(
            record,
            TurnRecord(
                arrival.turn,
                turn.num_prompt_tokens,
                arrival.expected_tokens,
                turn.hit_tokens,
                kept_tokens,
                self._miss(record, turn, arrival),
            ),
        )

    def _miss(self, record: JobRecord, turn: Turn, arrival: Arrival) -> Miss | None:
        """Count what was lost; returns the larger of what diverged and what had left the cache."""
        found = max(turn.hit_tokens, 0)
        num_gone = max(0, arrival.common_tokens - found)
        num_diverged = max(0, arrival.expected_tokens - max(arrival.common_tokens, found))
        if num_diverged:
            self.tally.add_miss(record.savings, "diverged", num_diverged)
        gone = self._gone(turn, arrival, num_gone) if num_gone else None
        if gone is not None:
            self.tally.add_miss(record.savings, gone.reason, num_gone)
        if num_diverged > num_gone:
            return Miss("diverged", num_diverged, _divergence(turn, arrival))
        return gone

    def _gone(self, turn: Turn, arrival: Arrival, num_tokens: int) -> Miss:
        left = arrival.left
        assert left is not None
        facts: dict[str, Any] = {
            "tool": arrival.tool,
            "tool_s": arrival.tool_s,
            "predicted_s": arrival.predicted_s,
        }
        let_go = left.let_go
        if left.finished_s < self._reset_s:
            return Miss("reset", num_tokens, {"evicted_ago_s": turn.arrived_s - self._reset_s})
        if let_go is None:
            # It was never held, or is missing although it was.
            reason: MissReason = "other" if left.num_blocks else "ttl"
            return Miss(reason, num_tokens, {**facts, "ttl_s": left.undecided_ttl_s})
        facts["ttl_s"] = left.undecided_ttl_s if let_go.ttl_s is None else let_go.ttl_s
        facts["let_go"] = let_go.why
        # negative where memory went while the turn waited
        facts["evicted_ago_s"] = max(0.0, turn.arrived_s - let_go.at_s)
        return Miss(REASONS.get(let_go.why, "other"), num_tokens, facts, let_go.taken_by)

    def turn_resumed(self, turn: Turn, num_tokens: int) -> None:
        """A turn that was preempted computes so many tokens again."""
        record = self._jobs.get(turn.job.job_id)
        if record is not None and num_tokens > 0:
            self.tally.add_miss(record.savings, "pressure", num_tokens)

    def turn_finished(
        self,
        turn: Turn,
        context: Context,
        *,
        num_blocks: int,
        num_exclusive_blocks: int,
        num_pinned_blocks: int,
    ) -> None:
        """The turn ended and left this context, of which it keeps `num_blocks`; other pins hold
        `num_pinned_blocks`."""
        job, host = turn.job, self._host
        record = self._record_of(job.job_id)
        self._forget_hashes(job.job_id)
        record.left = left = LeftContext(
            context.num_tokens,
            context.num_prompt_tokens,
            job.first_prompt_tokens,
            host.clock(),
            record.cache_keys,
            host.num_free_blocks() + num_pinned_blocks,
            host.num_allocated_blocks,
            num_blocks,
            num_exclusive_blocks,
            0.0 if turn.ttl is None else turn.ttl.seconds,
            context.block_hashes,
        )
        self._hashed[job.job_id] = left
        self._num_hashes += len(context.block_hashes)
        while self._num_hashes * HASH_BYTES > MAX_HASH_BYTES:
            self._forget_hashes(next(iter(self._hashed)))

    def turn_aborted(self, turn: Turn) -> None:
        """The turn ended without an answer, perhaps before it had blocks."""
        if self._arrivals.pop(turn.request_id, None) is None:
            self.let_go(turn.job.job_id, "aborted")

    # How KV was let go

    def pin_ended(self, pin: Pin[Any], reason: PinEnd, taken_by: str | None = None) -> None:
        """A pin is over, or, for `pressure`, has lost its last blocks to a request."""
        record = self._jobs.get(pin.job_id)
        if reason != "returned" and record is not None and record.left is not None:
            record.left.let_go = LetGo(reason, self._host.clock(), pin.ttl_s, taken_by)

    def let_go(self, job_id: str, reason: str) -> None:
        """A job, or its turn, is over: its KV, if it was not let go before, is from now on."""
        record = self._jobs.get(job_id)
        if record is not None and record.left is not None and record.left.let_go is None:
            record.left.let_go = LetGo(reason, self._host.clock())

    def cache_reset(self) -> None:
        """vLLM's prefix cache is empty."""
        self._reset_s = self._host.clock()

    # What is shown

    def savings_of(self, job_id: str) -> Savings:
        """The sums of a job; zeros for one that is not remembered."""
        record = self._jobs.get(job_id)
        return Savings() if record is None else record.savings

    def turns_of(self, job_id: str, viewer: str | None) -> list[dict[str, Any]]:
        """The last turns of a job as plain data, as `viewer` may see them."""
        record = self._jobs.get(job_id)
        return [] if record is None else [turn.as_dict(viewer) for turn in record.turns]

    # Bounds

    def _record_of(self, job_id: str) -> JobRecord:
        record = self._jobs.get(job_id)
        if record is None:
            record = self._jobs[job_id] = JobRecord()
        self._jobs.move_to_end(job_id)
        return record

    def _keep(self, record: JobRecord, turn: TurnRecord) -> None:
        record.turns.append(turn)
        if len(record.turns) > MAX_TURNS_OF_JOB:
            record.turns.popleft()
            return
        self._num_turns += 1
        while self._num_turns > MAX_TURNS:
            job_id, oldest = self._jobs.popitem(last=False)
            self._num_turns -= len(oldest.turns)
            self._forget_hashes(job_id)

    def _forget_hashes(self, job_id: str) -> None:
        left = self._hashed.pop(job_id, None)
        if left is not None and left.block_hashes is not None:
            self._num_hashes -= len(left.block_hashes)
            left.block_hashes = None


def _divergence(turn: Turn, arrival: Arrival) -> dict[str, Any]:
    """Where a prompt leaves what the turn before left, and what that tells."""
    left = arrival.left
    assert left is not None
    return {"diverged_at": arrival.diverged_at, "of_tokens": left.num_tokens}
