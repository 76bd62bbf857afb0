"""The engine's loop on a virtual clock: vLLM's scheduler decides, the cost model says how long.

It knows turns and batches; nothing of jobs, agents or tools.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from agentkv.testing.vllm_scheduler import make_request, runner_output

from .cost import Batch, CostModel
from .dram_tier import PcieLink
from .machine import Machine, StuckError

_NO_TOKENS: list[int] = []


@dataclass(slots=True)
class EngineCounters:
    """Totals of a run. Every token that is computed is counted once in `computed_tokens`.

    `recomputed_tokens` are those in full blocks that had been computed before: lost to eviction or
    preemption, and neither on the GPU nor in DRAM.
    """

    steps: int = 0
    jumps: int = 0
    preemptions: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    reloaded_tokens: int = 0
    reloads: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class SimulatedEngine:
    """One engine. Requests are added between steps, as vLLM's input queue is read between them."""

    def __init__(
        self, machine: Machine, scheduler: Any, clock: VirtualClock, *, has_jumps: bool = True
    ) -> None:
        """Without jumps each step computes one token per decode: slower, for checking."""
        self.scheduler = scheduler
        self.counters = EngineCounters()
        self._machine = machine
        self._clock = clock
        self._turns: dict[str, LiveTurn] = {}
        self._planner: JumpPlanner | None = None
        if has_jumps:
            self._planner = JumpPlanner(
                machine.cost,
                block_tokens=machine.block_tokens,
                max_batch_tokens=machine.max_num_batched_tokens,
            )
        self._link = PcieLink(machine.pcie_bytes_s)
        self._prompt = [0] * machine.max_model_tokens
        self._pins = scheduler.retention.pins if hasattr(scheduler, "retention") else None
        self._is_settled = False

    @property
    def is_busy(self) -> bool:
        """Whether any turn is in the engine."""
        return bool(self._turns)

    @property
    def num_free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    @property
    def next_expiry_s(self) -> float:
        """When the next pin expires; infinity if there is none."""
        expiry_s = self._pins.next_expiry_s if self._pins is not None else None
        return math.inf if expiry_s is None else float(expiry_s)

    def add(self, turn: LiveTurn) -> None:
        """A request arrives."""
        turn.request = make_request(
            turn.request_id,
            self._prompt[: turn.prompt_tokens],
            max_tokens=turn.output_tokens,
            tags=turn.tags,
            block_hasher=turn.hashes.hasher(),
        )
        self._turns[turn.request_id] = turn
        self._is_settled = False
        self.scheduler.add_request(turn.request)

    def tell(self, signal: Callable[[Any], object]) -> None:
        """Hand the scheduler something out of band: a tool signal, a release."""
        self._is_settled = False
        signal(self.scheduler)

    def expire_pins(self) -> None:
        """What an idle engine does when its timer wakes it."""
        self.scheduler.has_requests()

    def step(self, until_s: float) -> list[LiveTurn]:
        """One step, or a jump that stops at `until_s`; answers with the turns that ended."""
        started_s = self._clock.now_s
        jump_s = self._plan_jump(until_s)
        output = self.scheduler.schedule()
        self._start_loads(started_s)
        self._note_preempted(output.preempted_req_ids or ())
        if not output.num_scheduled_tokens:
            if output.preempted_req_ids:  # the last turn that ran: its room is the next step's
                self._is_settled = False
            else:
                self._wait(until_s)
            self._finish_loads(output)
            return []
        self._clock.now_s = started_s + self._price(output.num_scheduled_tokens, jump_s)
        loaded = self._link.take_done(self._clock.now_s)
        ended = self._feed_back(output, loaded)
        # With memory as it is and tokens to spare, who waits now waits in the next step too.
        self._is_settled = not (
            ended
            or loaded
            or output.preempted_req_ids
            or output.total_num_scheduled_tokens >= self._machine.max_num_batched_tokens
        )
        return ended

    # Planning

    def _plan_jump(self, until_s: float) -> float:
        """Seconds of the jump that the next step is made into; 0 if it stays a single step."""
        num_running, num_waiting = self.scheduler.get_request_counts()
        if self._planner is None or not num_running or (num_waiting and not self._is_settled):
            return 0.0
        until_s = min(until_s, self._link.next_done_s, self.next_expiry_s)
        turns = [self._turns[request.request_id] for request in self.scheduler.running]
        ends_s = self._planner.plan(
            turns,
            num_free_blocks=self.num_free_blocks,
            left_s=until_s - self._clock.now_s,
        )
        if not ends_s:
            return 0.0
        self.counters.jumps += 1
        drafts = self._prompt[: len(ends_s) - 1]
        for turn in turns:
            turn.request.spec_token_ids = drafts
        return ends_s[-1]

    def _price(self, scheduled: dict[str, int], jump_s: float) -> float:
        """Seconds that a step takes; of a jump they are known already."""
        self.counters.steps += 1
        batch = Batch()
        for request_id, num_tokens in scheduled.items():
            turn = self._turns[request_id]
            turn.computed_tokens = turn.request.num_computed_tokens
            past_tokens = turn.computed_tokens - num_tokens
            self.counters.computed_tokens += num_tokens
            if not turn.is_admitted:
                self._note_admitted(turn, past_tokens)
            elif jump_s:
                continue
            if num_tokens == 1:
                batch.add_decode(past_tokens)
            else:
                batch.add_prefill(num_tokens, past_tokens)
        if jump_s and not (batch.num_prefills or batch.num_decodes):
            return jump_s
        return jump_s + self._machine.cost.step_s(batch)

    # What became of a step

    def _feed_back(self, output: Any, loaded: list[str]) -> list[LiveTurn]:
        scheduled = output.num_scheduled_tokens
        drafts = output.scheduled_spec_decode_tokens
        sampled: list[list[int]] = []
        for request_id in scheduled:
            turn = self._turns[request_id]
            if turn.request.is_prefill_chunk:
                sampled.append(_NO_TOKENS)
                continue
            num_sampled = 1 + len(drafts.get(request_id, ()))
            turn.num_generated += num_sampled
            if num_sampled > 1:
                self._cache_full_blocks(turn)
            sampled.append([turn.reply_token] * num_sampled)
        fed_back = self.scheduler.update_from_output(
            output, runner_output(list(scheduled), sampled, loaded=loaded)
        )
        return list(self._ended(fed_back[0].outputs)) if fed_back else []

    def _cache_full_blocks(self, turn: LiveTurn) -> None:
        """Make the blocks that a jump has filled findable, as its single steps would have: vLLM
        enters a block into the prefix cache in the step after the one that knows its last token."""
        request, num_tokens = turn.request, turn.computed_tokens
        behind = len(request.block_hashes)
        if num_tokens >= (behind + 1) * self._machine.block_tokens:
            request.block_hashes.extend(turn.hashes.up_to(num_tokens, behind=behind))
            self.scheduler.kv_cache_manager.cache_blocks(request, num_tokens)

    def _ended(self, outputs: Iterable[Any]) -> Iterable[LiveTurn]:
        for output in outputs:
            turn = self._turns[output.request_id]
            if turn.first_token_s is None:
                turn.first_token_s = self._clock.now_s
            if output.prefill_stats is not None:
                turn.cached_tokens = output.prefill_stats.num_cached_tokens
            if output.finish_reason is not None:
                turn.ended_s = self._clock.now_s
                del self._turns[output.request_id]
                yield turn

    def _note_admitted(self, turn: LiveTurn, hit_tokens: int) -> None:
        turn.is_admitted = True
        size = self._machine.block_tokens
        hoped_tokens = min(turn.known_tokens, turn.request.num_tokens - 1) // size * size
        self.counters.recomputed_tokens += max(0, hoped_tokens - hit_tokens)

    def _note_preempted(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            turn = self._turns[request_id]
            turn.is_admitted = False
            turn.known_tokens = max(turn.known_tokens, turn.computed_tokens)
            self.counters.preemptions += 1

    # Waiting and loading

    def _start_loads(self, now_s: float) -> None:
        connector = self.scheduler.connector
        if connector is None or not connector.loads:
            return
        for request_id, num_blocks in connector.loads:
            self._link.start(request_id, num_blocks * self._machine.block_bytes, now_s)
            self.counters.reloads += 1
            self.counters.reloaded_tokens += num_blocks * self._machine.block_tokens
        connector.loads.clear()

    def _finish_loads(self, output: Any) -> None:
        loaded = self._link.take_done(self._clock.now_s)
        self.scheduler.update_from_output(output, runner_output([], [], loaded=loaded))

    def _wait(self, until_s: float) -> None:
        """Nothing can run: pass the time until something happens."""
        wake_s = min(until_s, self._link.next_done_s, self.next_expiry_s)
        if wake_s == math.inf:
            waiting = ", ".join(sorted(self._turns)[:5])
            raise StuckError(
                f"{len(self._turns)} turns wait for memory that nothing will free ({waiting}); "
                f"{self.num_free_blocks} of {self._machine.num_blocks} blocks are free"
            )
        self._is_settled = False
        self._clock.now_s = max(self._clock.now_s, wake_s)


@dataclass(slots=True)
class LiveTurn:
    """A request and what became of it so far; times in seconds on the run's clock.

    `reply_token` is the token that the whole reply is made of: a number that stands for its text.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    reply_token: int
    hashes: ContextHashes
    known_tokens: int
    """Tokens of the context whose KV was computed at some time: what a perfect cache would have."""
    tags: dict[str, Any] | None = None
    owner: Any = None
    """Whose turn it is; opaque to the engine."""
    num_generated: int = 0
    computed_tokens: int = 0
    is_admitted: bool = False
    cached_tokens: int = 0
    first_token_s: float | None = None
    ended_s: float | None = None
    request: Any = field(default=None, repr=False)

    @property
    def is_prefilling(self) -> bool:
        """Whether more than the last token of its context is still to be computed."""
        return self.computed_tokens + 1 < self.prompt_tokens + self.num_generated

    @property
    def num_left(self) -> int:
        """Tokens still to be generated."""
        return self.output_tokens - self.num_generated


_name = struct.Struct(">II").pack


class ContextHashes:
    """The names of one job's blocks, made as far as they are asked for."""

    def __init__(self, job_number: int, block_tokens: int) -> None:
        self._job_number = job_number
        self._block_tokens = block_tokens
        self._names: list[bytes] = []

    def up_to(self, num_tokens: int, *, behind: int = 0) -> list[bytes]:
        """The names of the full blocks of so many tokens, but for the first `behind`."""
        num_blocks = num_tokens // self._block_tokens
        for index in range(len(self._names), num_blocks):
            self._names.append(_name(self._job_number, index))
        return self._names[behind:num_blocks]

    def hasher(self) -> Callable[[Any], list[bytes]]:
        """What vLLM calls whenever a request has got tokens."""
        block_tokens = self._block_tokens

        def new_hashes(request: Any) -> list[bytes]:
            num_tokens, behind = request.num_tokens, len(request.block_hashes)
            if num_tokens < (behind + 1) * block_tokens:
                return []
            return self.up_to(num_tokens, behind=behind)

        return new_hashes


class JumpPlanner:
    """Decides how far the engine may jump."""

    def __init__(self, cost: CostModel, *, block_tokens: int, max_batch_tokens: int) -> None:
        self._cost = cost
        self._block_tokens = block_tokens
        self._max_batch_tokens = max_batch_tokens

    def plan(
        self, turns: Sequence[LiveTurn], *, num_free_blocks: int, left_s: float
    ) -> list[float]:
        """When each step of a jump of all running turns ends, in seconds from its start.

        The last step is the first to end at or after `left_s`, as a step under way would. Empty
        where no jump of two steps or more is possible.
        """
        if not turns or any(turn.is_prefilling for turn in turns):
            return []
        limit = min(turn.num_left for turn in turns)
        limit = min(limit, self._max_batch_tokens // len(turns))
        while limit > 1 and self._num_new_blocks(turns, limit) > num_free_blocks:
            limit //= 2
        if limit < 2:
            return []
        ends_s = self._priced(turns, limit, left_s)
        return ends_s if len(ends_s) > 1 else []

    def _num_new_blocks(self, turns: Sequence[LiveTurn], num_tokens: int) -> int:
        size = self._block_tokens
        return sum(
            -(-(turn.computed_tokens + num_tokens) // size) - -(-turn.computed_tokens // size)
            for turn in turns
        )

    def _priced(self, turns: Sequence[LiveTurn], limit: int, left_s: float) -> list[float]:
        batch = Batch()
        for turn in turns:
            batch.add_decode(turn.computed_tokens)
        ends_s: list[float] = []
        end_s = 0.0
        while len(ends_s) < limit and end_s < left_s:
            end_s += self._cost.step_s(batch)
            ends_s.append(end_s)
            batch.context_tokens += batch.num_decodes
        return ends_s


class VirtualClock:
    """Seconds since the start of a run; called like `time.monotonic`."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s
