"""What each turn of a job was expected to find in the cache, what it found, and why not all of it.

RetentionManager reports turns and ends of pins. One record for each job, kept beyond the job's end,
so that a job that goes on after its release learns why; bounded in jobs, turns and bytes. Knows
blocks by their hashes only. Each call is O(1), or O(log blocks) for a prompt that diverges.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Any

from agentkv.policies.jobs import Turn
from agentkv.policies.pins import Pin, PinEnd
from agentkv.protocol import Tags, client_and_id

from ..telemetry.counters import Counters
from ..telemetry.divergence import Difference, first_difference, kind_of_divergence
from ..telemetry.savings import MissReason, Savings, SavingsTally
from ..telemetry.turn_records import (
    Arrival,
    JobRecord,
    LeftContext,
    LetGo,
    Miss,
    Prompt,
    TurnRecord,
)
from . import Host
from .costs import RestoreCostModel
from .jobs import Context
from .predictor import BackgroundWorker

MAX_TURNS = 50_000
"""Turns remembered over all jobs, of 100 to 500 bytes each."""
MAX_TURNS_OF_JOB = 64
MAX_COMPARED = 1000
"""Jobs among which the worst ones are looked for, so that a question does not stop the engine."""
MAX_PROMPT_BYTES = 64 << 20
"""Bytes of block hashes, and of tokens if prompts may be shown, kept of last turns over all jobs;
without them a divergence is found less exactly."""
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


class TurnHistory:
    """The records of all jobs of one engine, the least recently active job first."""

    def __init__(
        self,
        host: Host,
        costs: RestoreCostModel,
        counters: Counters,
        worker: BackgroundWorker,
        *,
        shows_prompts: bool = False,
    ) -> None:
        """`worker` decodes what prompts differ in, if they may be shown."""
        self.tally = SavingsTally(counters)
        self._host = host
        self._costs = costs
        self._jobs: OrderedDict[str, JobRecord] = OrderedDict()
        self._num_turns = 0
        self._arrivals: dict[str, Arrival] = {}
        """By request, from its arrival to its first blocks or its end."""
        self._worker = worker
        self._shows_prompts = shows_prompts
        self._prompts: OrderedDict[str, LeftContext] = OrderedDict()
        """What last turns left, as far as hashes or tokens are kept."""
        self._prompt_bytes = 0
        self._step_allocated_blocks = 0
        self._reset_s = 0.0

    # Turns

    def step_begins(self) -> None:
        """Requests that this step admits find in the cache what was there at its beginning."""
        self._step_allocated_blocks = self._host.num_allocated_blocks

    def turn_arrived(self, turn: Turn, tags: Tags, prompt: Prompt) -> None:
        """Note what the turn should find."""
        job = turn.job
        record = self._jobs.get(job.job_id)
        left = None if record is None or turn.is_side_request else record.left
        if left is None:
            arrival = Arrival(tags.turn or job.num_turns, None, cache_keys=prompt.cache_keys)
        else:
            arrival = self._compared(turn, left, tags, prompt)
        self._arrivals[turn.request_id] = arrival

    def _compared(self, turn: Turn, left: LeftContext, tags: Tags, prompt: Prompt) -> Arrival:
        pool, job = self._host.pool, turn.job
        block_tokens = pool.block_tokens
        # vLLM computes at least the last token, and with EAGLE the last block of a hit, too
        most = (turn.num_prompt_tokens - 1) // block_tokens * block_tokens
        dropped = block_tokens if pool.drops_last_block else 0
        expected = min(left.num_tokens, most)
        common, divergence, difference = expected, None, None
        if turn.common_tokens < expected:
            num_blocks = left.common_blocks(prompt.block_hashes)
            if num_blocks is not None:
                common = min(num_blocks * block_tokens, expected)
            elif job.finished_s is not None:  # else it is a new job, which knows nothing of the old
                common = turn.common_tokens
        if common < expected:
            divergence, difference = self._divergence(left, common, prompt)
        known = job.decision
        gap_s = turn.arrived_s - left.finished_s
        return Arrival(
            tags.turn or job.num_turns,
            left,
            max(0, expected - dropped),
            max(0, common - dropped),
            divergence,
            difference,
            prompt.cache_keys,
            job.tool,
            gap_s if tags.last_tool_s is None else tags.last_tool_s,
            None if known is None else known.p50_s,
        )

    def _divergence(
        self, left: LeftContext, common_tokens: int, prompt: Prompt
    ) -> tuple[Mapping[str, Any], Difference | None]:
        """Where the prompt differs, the first `common_tokens` being equal, and what that tells."""
        at, within, difference = common_tokens, self._host.pool.block_tokens, None
        has_other_keys = prompt.cache_keys != left.cache_keys
        if left.token_ids and not has_other_keys:
            at, within = first_difference(left.token_ids, prompt.token_ids, common_tokens), 1
            difference = Difference(
                at,
                left.token_ids,
                left.num_prompt_tokens,
                left.first_prompt_tokens,
                prompt.token_ids,
            )
        kind = kind_of_divergence(
            at=at,
            within=within,
            num_prompt_tokens=len(prompt.token_ids),
            last_prompt_tokens=left.num_prompt_tokens,
            first_prompt_tokens=left.first_prompt_tokens,
            has_other_keys=has_other_keys,
        )
        facts = {"diverged_at": at, "of_tokens": left.num_tokens, "kind": kind}
        return facts, difference

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
        if num_diverged <= num_gone:
            return gone
        miss = Miss("diverged", num_diverged, dict(arrival.divergence or {}))
        if arrival.difference is not None:
            describe = partial(self._describe, miss, arrival.difference)
            self._worker.do(describe, turn.job.client, can_wait=True)
        return miss

    def _describe(self, miss: Miss, difference: Difference) -> None:
        miss.facts = {**miss.facts, **difference.described(self._host.decode)}

    def _gone(self, turn: Turn, arrival: Arrival, num_tokens: int) -> Miss:
        left = arrival.left
        assert left is not None
        facts: dict[str, Any] = {
            "tool": arrival.tool,
            "tool_s": arrival.tool_s,
            "predicted_s": arrival.predicted_s,
        }
        let_go = left.let_go
        if left.finished_s <= self._reset_s:  # equal if it ended in the pause
            ago_s = max(0.0, turn.arrived_s - self._reset_s)
            return Miss("reset", num_tokens, {"evicted_ago_s": ago_s})
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
        """A turn that was preempted computes `num_tokens` again."""
        record = self._jobs.get(turn.job.job_id)
        if record is not None and num_tokens > 0:
            reason: MissReason = "reset" if turn.was_reset else "pressure"
            self.tally.add_miss(record.savings, reason, num_tokens)

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
        self._forget_prompt(job.job_id)
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
            context.token_ids if self._shows_prompts else (),
        )
        self._prompts[job.job_id] = left
        self._prompt_bytes += left.num_bytes
        while self._prompt_bytes > MAX_PROMPT_BYTES:
            self._forget_prompt(next(iter(self._prompts)))

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

    def job_ended(self, job_id: str, reason: str) -> None:
        """The job is over; no tokens of it are kept."""
        self.let_go(job_id, reason)
        left = self._prompts.get(job_id)
        if left is not None:
            self._prompt_bytes -= left.num_bytes
            left.token_ids = ()
            self._prompt_bytes += left.num_bytes

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

    def explained(
        self, client: str | None, own_id: str | None = None, most: int = 1
    ) -> list[dict[str, Any]]:
        """Jobs of a client (None: of all) as plain data, with their turns: those of that id, or of
        the MAX_COMPARED last active ones the `most` that computed the most tokens a second time."""
        latest = reversed(self._jobs.items())
        found = [
            (key, record)
            for key, record in (latest if own_id is not None else islice(latest, MAX_COMPARED))
            if (client is None or client_and_id(key)[0] == client)
            and (own_id is None or client_and_id(key)[1] == own_id)
        ]
        if own_id is None:
            found = heapq.nlargest(most, found, key=lambda entry: entry[1].num_recomputed_tokens)
        return [
            {
                "job_id": client_and_id(key)[1],
                "savings": record.savings.as_dict(),
                "turns": [turn.as_dict(client) for turn in record.turns],
            }
            for key, record in found
        ]

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
            self._forget_prompt(job_id)

    def _forget_prompt(self, job_id: str) -> None:
        left = self._prompts.pop(job_id, None)
        if left is not None:
            self._prompt_bytes -= left.num_bytes
            left.block_hashes = left.token_ids = ()
