"""The engine's loop on a virtual clock: vLLM's scheduler decides, the cost model prices each step.

Called by run.py, step by step. Knows requests and batches; nothing of agents or tools.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from agentkv.durations.windows import DurationWindow
from agentkv.errors import RunError
from agentkv.integrations.vllm.retention.manager import RETURNING_WINDOW
from agentkv.integrations.vllm.telemetry.load_reports import EngineReport
from agentkv.testing.vllm_scheduler import make_request, runner_output, take_tokens_together

from ..workload.plans import Prefix
from .cost import Batch
from .dram_tier import PcieLink
from .machine import Machine

_pack_block_name = struct.Struct(">II").pack
_NO_TOKENS: list[int] = []


class VirtualClock:
    """Seconds since the start of a run, advanced by hand; called like `time.monotonic`."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class ContextHashes:
    """Block hashes of one job's context, named by job and position instead of by content.

    A context only grows, and jobs have no tokens in common but those of a prefix, so job (or
    prefix) and position identify a block as well as a hash of its tokens would, at no cost.
    """

    def __init__(self, job_number: int, block_tokens: int, prefixes: Iterable[Prefix] = ()) -> None:
        self._job_number = job_number
        self._block_tokens = block_tokens
        self._names: list[bytes] = []
        for prefix in prefixes:
            # longer than a job's own names, so never equal to one
            name = f"prefix {prefix.name} ".encode()
            for index in range(len(self._names), prefix.num_tokens // block_tokens):
                self._names.append(name + _pack_block_name(0, index))

    def up_to(self, num_tokens: int, *, skip: int = 0) -> list[bytes]:
        """Names of the full blocks of `num_tokens` tokens, without the first `skip`."""
        num_blocks = num_tokens // self._block_tokens
        for index in range(len(self._names), num_blocks):
            self._names.append(_pack_block_name(self._job_number, index))
        return self._names[skip:num_blocks]

    def new_hashes(self, request: Any) -> list[bytes]:
        """Names of a request's new full blocks: vLLM asks whenever it has gained tokens."""
        num_hashed = len(request.block_hashes)
        if request.num_tokens < (num_hashed + 1) * self._block_tokens:
            return []
        return self.up_to(request.num_tokens, skip=num_hashed)


@dataclass(slots=True)
class LiveTurn:
    """A request in the engine and its progress; times in seconds on the run's clock.

    The whole reply consists of `reply_token`, a number that stands for its text. `owner` is opaque
    to the engine.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    reply_token: int
    hashes: ContextHashes
    known_tokens: int
    """Tokens of the context that were computed before: the hits of a perfect cache."""
    tags: dict[str, Any] | None = None
    owner: Any = None
    num_generated: int = 0
    computed_tokens: int = 0
    is_admitted: bool = False
    is_returning: bool = False
    """True for a later turn of a job."""
    reached_s: float = 0.0
    waited_s: float | None = None
    """Seconds from there to its first blocks; None before."""
    cached_tokens: int = 0
    first_token_s: float | None = None
    ended_s: float | None = None
    request: Any = field(default=None, repr=False)

    def sent_again(self) -> LiveTurn:
        """The same turn for another engine, since this one is gone with all that it computed."""
        return replace(
            self,
            known_tokens=max(self.known_tokens, self.computed_tokens),
            num_generated=0,
            computed_tokens=0,
            is_admitted=False,
            waited_s=None,
            cached_tokens=0,
            first_token_s=None,
            request=None,
        )

    @property
    def is_prefilling(self) -> bool:
        """True while more than the last token of the context is left to compute."""
        return self.computed_tokens + 1 < self.prompt_tokens + self.num_generated

    @property
    def num_left(self) -> int:
        """Tokens left to generate."""
        return self.output_tokens - self.num_generated


def plan_jump(
    turns: Sequence[LiveTurn], machine: Machine, *, num_free_blocks: int, left_s: float
) -> list[float]:
    """End of each decode step that may be done at once, in seconds from the start of the first.

    Where the scheduler would decide the same in several steps, a jump hands each running request
    several tokens to compute, as speculative decoding does, and prices every step of it. It ends
    before anything happens (a request's last token, the end of free memory), and with the first
    step to end at or after `left_s`, as a step under way would. So it changes only how long the
    simulation takes. Empty where no jump of two steps or more is possible.
    """
    if not turns or any(turn.is_prefilling for turn in turns):
        return []
    limit = min(turn.num_left for turn in turns)
    limit = min(limit, machine.max_num_batched_tokens // len(turns))
    size = machine.block_tokens

    def num_new_blocks(num_tokens: int) -> int:
        return sum(
            -(-(turn.computed_tokens + num_tokens) // size) - -(-turn.computed_tokens // size)
            for turn in turns
        )

    while limit > 1 and num_new_blocks(limit) > num_free_blocks:
        limit //= 2
    if limit < 2:
        return []
    batch = Batch()
    for turn in turns:
        batch.add_decode(turn.computed_tokens)
    ends_s: list[float] = []
    end_s = 0.0
    while len(ends_s) < limit and end_s < left_s:
        end_s += machine.cost.step_s(batch)
        ends_s.append(end_s)
        batch.context_tokens += batch.num_decodes
    return ends_s if len(ends_s) > 1 else []


@dataclass(slots=True)
class EngineCounters:
    """Totals of a run. Every computed token counts once in `computed_tokens`.

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


class SimulatedEngine:
    """One engine with a clock of its own, which stands where its last step ended.

    Requests and signals reach it between steps, as vLLM reads its input queue between them.
    """

    def __init__(
        self, machine: Machine, scheduler: Any, clock: VirtualClock, *, has_jumps: bool = True
    ) -> None:
        """Without jumps each step computes one token per decode: slower, for checking."""
        take_tokens_together(scheduler)
        self.scheduler = scheduler
        self.counters = EngineCounters()
        self._machine = machine
        self._clock = clock
        self.turns: dict[str, LiveTurn] = {}
        self._has_jumps = has_jumps
        self.link: PcieLink[str] = PcieLink(machine.pcie_bytes_s)
        """Loads, by request."""
        self._out_link: PcieLink[list[Any]] = PcieLink(machine.pcie_bytes_s)
        """Blocks on their way to the tier."""
        self._prompt = [0] * machine.max_model_tokens
        self._retention = getattr(scheduler, "retention", None)
        self._is_settled = False
        self._jump_s: list[float] = []
        """End of each step of the jump under way, in seconds from its start."""
        self._blocked: Any = None
        """Output of the step under way that could run nothing; None if there is none."""
        self._wake_s = math.inf
        """Time at which what is under way ends by itself."""
        self._returning_waits = DurationWindow(RETURNING_WINDOW)
        """For the report, where the plugin makes none."""

    @property
    def now_s(self) -> float:
        return self._clock.now_s

    @property
    def is_busy(self) -> bool:
        """True while a turn is in the engine."""
        return bool(self.turns)

    @property
    def wake_s(self) -> float:
        """Time of what it does next unless anything reaches it before; infinity while idle."""
        if self._jump_s or self._blocked is not None:
            return self._wake_s
        return self._clock.now_s if self.turns else math.inf

    @property
    def num_waiting(self) -> int:
        return int(self.scheduler.get_request_counts()[1])

    def totals(self) -> dict[str, Any]:
        """Its own counters and, under our policies, the plugin's."""
        counters = self._retention.counters.totals() if self._retention is not None else {}
        return {**asdict(self.counters), **counters}

    def events(self) -> dict[str, Any] | None:
        """The plugin's event log; None under the stock scheduler."""
        return None if self._retention is None else self._retention.events.as_dict()

    def report(self, prefill_s: tuple[float, float, float], now_s: float) -> EngineReport:
        """What it says of its load; `prefill_s` counts where it learns no prices itself."""
        if self._retention is None:
            return EngineReport(self._returning_waits.mean_s, prefill_s, now_s)
        wait_s, learned_s = self._retention.report()
        return EngineReport(wait_s, tuple(learned_s), now_s)

    @property
    def num_free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    @property
    def next_expiry_s(self) -> float:
        """Time at which the next pin expires; infinity without pins."""
        if self._retention is None or self._retention.pins.next_expiry_s is None:
            return math.inf
        return float(self._retention.pins.next_expiry_s)

    @property
    def next_tick_s(self) -> float:
        """Time at which the policy looks at its jobs again; infinity without such a time."""
        return math.inf if self._retention is None else float(self._retention.next_tick_s)

    def add(self, turn: LiveTurn) -> None:
        """Add the request of a turn to the scheduler; `reach` comes first."""
        turn.reached_s = self._clock.now_s
        turn.request = make_request(
            turn.request_id,
            self._prompt[: turn.prompt_tokens],
            max_tokens=turn.output_tokens,
            tags=turn.tags,
            block_hasher=turn.hashes.new_hashes,
        )
        self.turns[turn.request_id] = turn
        self._is_settled = False
        self.scheduler.add_request(turn.request)

    def deliver(self, signal: Callable[[Any], object]) -> None:
        """Hand the scheduler a signal, a tool event or a release; `reach` comes first."""
        self._is_settled = False
        signal(self.scheduler)

    def reset(self) -> None:
        """Drop all KV; running turns are computed again, as after `pause(mode="keep")`.

        `reach` comes first. Raises RunError if turns run and the engine has a tier, whose loads
        cannot be stopped.
        """
        if self.turns and self.scheduler.connector is not None:
            raise RunError("an update of the weights resets the cache, and a tier cannot be reset")
        self._is_settled = False
        for turn in self.turns.values():
            turn.is_admitted = False
            turn.known_tokens = turn.computed_tokens = 0
        self.scheduler.reset_prefix_cache(reset_running_requests=True)

    def reach(self, now_s: float) -> list[LiveTurn]:
        """End the step under way, if there is one, because something arrives now.

        A jump ends with its first step to end now or later. Returns the turns that ended.
        """
        if self._jump_s or self._blocked is not None:
            return self._end(now_s)
        while not self.turns and self._clock.now_s < now_s:
            expiry_s = self.next_expiry_s
            self._clock.now_s = max(self._clock.now_s, min(now_s, expiry_s))
            if expiry_s <= now_s:
                self.scheduler.has_requests()  # what an idle engine does when its timer wakes it
        return []

    def run(self, until_s: float, *, blocked_until_s: float) -> list[LiveTurn]:
        """End what is under way, or begin a step; returns the turns that ended.

        until_s: a jump stops there. blocked_until_s: if nothing can run, when to look again.
        """
        if self._jump_s or self._blocked is not None:
            return self._end(self._wake_s)
        self._jump_s = self._plan_jump(until_s)
        if self._jump_s:
            self._wake_s = self._clock.now_s + self._jump_s[-1]
            return []
        return self._step([], blocked_until_s)

    def _end(self, now_s: float) -> list[LiveTurn]:
        if self._blocked is not None:
            output, self._blocked = self._blocked, None
            self._is_settled = False
            self._clock.now_s = max(self._clock.now_s, now_s)
            self._update_empty(output)
            return []
        jump_s, self._jump_s = self._jump_s, []
        num_steps = bisect_left(jump_s, now_s - self._clock.now_s) + 1
        return self._step(jump_s[:num_steps], math.inf)

    def _step(self, jump_s: Sequence[float], blocked_until_s: float) -> list[LiveTurn]:
        """Run one step, or a jump of several; return the turns that ended."""
        started_s = self._clock.now_s
        if len(jump_s) > 1:
            self.counters.jumps += 1
            drafts = self._prompt[: len(jump_s) - 1]
            for request in self.scheduler.running:
                request.spec_token_ids = drafts
        self._take_stored()
        output = self.scheduler.schedule()
        self._start_loads(started_s)
        self._count_preempted(output.preempted_req_ids or ())
        if not output.num_scheduled_tokens:
            if output.preempted_req_ids:  # the last running turn: the next step has its room
                self._is_settled = False
                self._update_empty(output)
            else:
                self._blocked = output
                transfer_s = min(self.link.next_done_s, self._out_link.next_done_s)
                self._wake_s = min(blocked_until_s, transfer_s, self.next_expiry_s)
            return []
        priced_s = jump_s[-1] if len(jump_s) > 1 else 0.0
        self._clock.now_s = started_s + self._price(output.num_scheduled_tokens, priced_s)
        loaded = self.link.take_done(self._clock.now_s)
        ended = self._feed_back(output, loaded)
        self._start_stores()
        # If neither memory nor the token budget changed, the waiting queue cannot make progress.
        self._is_settled = not (
            ended
            or loaded
            or output.preempted_req_ids
            or output.total_num_scheduled_tokens >= self._machine.max_num_batched_tokens
        )
        return ended

    def _update_empty(self, output: Any) -> None:
        loaded = self.link.take_done(self._clock.now_s)
        self.scheduler.update_from_output(output, runner_output([], [], loaded=loaded))

    # Planning

    def _plan_jump(self, until_s: float) -> list[float]:
        """End of each step of the jump that replaces the next step; empty for a single step."""
        self._take_stored()
        num_running, num_waiting = self.scheduler.get_request_counts()
        if not self._has_jumps or not num_running or (num_waiting and not self._is_settled):
            return []
        until_s = min(until_s, self.link.next_done_s, self.next_expiry_s, self.next_tick_s)
        if num_waiting:  # perhaps for the end of a copy
            until_s = min(until_s, self._out_link.next_done_s)
        turns = [self.turns[request.request_id] for request in self.scheduler.running]
        left_s = until_s - self._clock.now_s
        return plan_jump(turns, self._machine, num_free_blocks=self.num_free_blocks, left_s=left_s)

    def _price(self, scheduled: dict[str, int], jump_s: float) -> float:
        """Seconds of a step; a jump has been priced already, but for turns admitted with it."""
        self.counters.steps += 1
        batch = Batch()
        for request_id, num_tokens in scheduled.items():
            turn = self.turns[request_id]
            turn.computed_tokens = turn.request.num_computed_tokens
            past_tokens = turn.computed_tokens - num_tokens
            self.counters.computed_tokens += num_tokens
            if not turn.is_admitted:
                self._count_admitted(turn, past_tokens)
            elif jump_s:
                continue
            if num_tokens == 1:
                batch.add_decode(past_tokens)
            else:
                batch.add_prefill(num_tokens, past_tokens)
        if jump_s and not (batch.num_prefills or batch.num_decodes):
            return jump_s
        return jump_s + self._machine.cost.step_s(batch)

    # Results of a step

    def _feed_back(self, output: Any, loaded: list[str]) -> list[LiveTurn]:
        scheduled = output.num_scheduled_tokens
        drafts = output.scheduled_spec_decode_tokens
        sampled: list[list[int]] = []
        for request_id in scheduled:
            turn = self.turns[request_id]
            if turn.request.is_prefill_chunk:
                sampled.append(_NO_TOKENS)
                continue
            num_sampled = 1 + len(drafts.get(request_id, ()))
            turn.num_generated += num_sampled
            if num_sampled > 1:
                self._cache_full_blocks(turn)
            sampled.append([turn.reply_token] * num_sampled)
        results = self.scheduler.update_from_output(
            output, runner_output(list(scheduled), sampled, loaded=loaded)
        )
        return list(self._ended(results[0].outputs)) if results else []

    def _cache_full_blocks(self, turn: LiveTurn) -> None:
        """Enter the blocks that a jump filled into the prefix cache, as single steps would have:
        vLLM enters a block in the step after the one that samples its last token."""
        request, num_tokens = turn.request, turn.computed_tokens
        num_hashed = len(request.block_hashes)
        if num_tokens >= (num_hashed + 1) * self._machine.block_tokens:
            request.block_hashes.extend(turn.hashes.up_to(num_tokens, skip=num_hashed))
            self.scheduler.kv_cache_manager.cache_blocks(request, num_tokens)

    def _ended(self, outputs: Iterable[Any]) -> Iterable[LiveTurn]:
        for output in outputs:
            turn = self.turns[output.request_id]
            if turn.first_token_s is None:
                turn.first_token_s = self._clock.now_s
            if output.prefill_stats is not None:
                turn.cached_tokens = output.prefill_stats.num_cached_tokens
            if output.finish_reason is not None:
                turn.ended_s = self._clock.now_s
                del self.turns[output.request_id]
                yield turn

    def _count_admitted(self, turn: LiveTurn, hit_tokens: int) -> None:
        turn.is_admitted = True
        if turn.waited_s is None:
            turn.waited_s = self._clock.now_s - turn.reached_s
            if turn.is_returning:
                self._returning_waits.observe(turn.waited_s)
        size = self._machine.block_tokens
        possible_tokens = min(turn.known_tokens, turn.request.num_tokens - 1) // size * size
        self.counters.recomputed_tokens += max(0, possible_tokens - hit_tokens)

    def _count_preempted(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            turn = self.turns[request_id]
            turn.is_admitted = False
            turn.known_tokens = max(turn.known_tokens, turn.computed_tokens)
            self.counters.preemptions += 1

    # Transfers, and waiting in vain

    def _start_loads(self, now_s: float) -> None:
        connector = self.scheduler.connector
        if connector is None or not connector.loads:
            return
        for request_id, num_blocks in connector.loads:
            self.link.start(request_id, num_blocks * self._machine.block_bytes, now_s)
            self.counters.reloads += 1
            self.counters.reloaded_tokens += num_blocks * self._machine.block_tokens
        connector.loads.clear()

    def _start_stores(self) -> None:
        connector = self.scheduler.connector
        if connector is None:
            return
        for blocks in connector.stores:
            num_bytes = len(blocks) * self._machine.block_bytes
            self._out_link.start(blocks, num_bytes, self._clock.now_s)
        connector.stores.clear()

    def _take_stored(self) -> None:
        """Waiting turns may load what has been copied out by now."""
        for blocks in self._out_link.take_done(self._clock.now_s):
            self.scheduler.connector.tier.arrived(blocks)
            self._is_settled = False

    def stuck_error(self) -> RunError:
        """The error of a run in which nothing will ever give this engine's turns memory."""
        waiting = ", ".join(sorted(self.turns)[:5])
        return RunError(
            f"{len(self.turns)} turns wait for memory that nothing will free ({waiting}); "
            f"{self.num_free_blocks} of {self._machine.num_blocks} blocks are free"
        )
