"""The engine's loop on a virtual clock: vLLM's scheduler decides, the cost model prices each step.

Called by run.py, step by step. It sees requests and batches, no agents or tools.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agentkv.errors import RunError
from agentkv.integrations.vllm.api import engine_side

from .cost import StepBatch
from .dram_tier import Transfers
from .machine import Machine
from .turns import LiveTurn
from .vllm_scheduler import make_request, runner_output, take_tokens_together

_NO_TOKENS: list[int] = []


def plan_jump(
    turns: Sequence[LiveTurn], machine: Machine, *, num_free_blocks: int, left_s: float
) -> list[float]:
    """End of each decode step that may be done at once, in seconds from the start of the first.

    Where the scheduler would decide the same in several steps, a jump hands each running request
    several tokens to compute, as speculative decoding does, and prices every step of it. It ends
    before anything happens (a request's last token, the end of free memory, the move of a recurrent
    state), and with the first step to end at or after `left_s`, as a step under way would. So it
    changes only how long the simulation takes. Empty where no jump of two steps is possible.
    """
    if not turns or any(turn.is_prefilling for turn in turns):
        return []
    limit = min(turn.num_left for turn in turns)
    limit = min(limit, machine.max_num_batched_tokens // len(turns))
    size = machine.block_tokens
    if machine.num_state_groups:
        limit = min(limit, *(_steps_of_a_state(turn, size) for turn in turns))

    def num_new_blocks(num_tokens: int) -> int:
        return sum(
            -(-(turn.computed_tokens + num_tokens) // size) - -(-turn.computed_tokens // size)
            for turn in turns
        )

    while limit > 1 and num_new_blocks(limit) > num_free_blocks:
        limit //= 2
    if limit < 2:
        return []
    batch = StepBatch()
    for turn in turns:
        batch.add_decode(turn.computed_tokens)
    ends_s: list[float] = []
    end_s = 0.0
    while len(ends_s) < limit and end_s < left_s:
        end_s += machine.cost.step_s(batch)
        ends_s.append(end_s)
        batch.context_tokens += batch.num_decodes
    return ends_s if len(ends_s) > 1 else []


def _steps_of_a_state(turn: LiveTurn, block_tokens: int) -> int:
    """Steps until a recurrent state moves: it takes a block with the block's first token, and the
    one before, or a prompt's, is free with the token after that."""
    num_tokens = turn.computed_tokens % block_tokens
    return 1 if num_tokens < 2 or turn.num_generated < 2 else block_tokens - num_tokens


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
    peak_blocks: int = 0
    """Blocks that were not free after a step, at most."""


class SimulatedEngine:
    """One engine with a clock of its own, which stands where its last step ended.

    Requests and signals reach it between steps, as vLLM reads its input queue between them. Each
    turn that ends goes to `on_end`, with the time of its end.
    """

    def __init__(
        self,
        machine: Machine,
        make_scheduler: Callable[[Callable[[], float]], Any],
        on_end: Callable[[LiveTurn], None],
        *,
        has_jumps: bool = True,
    ) -> None:
        """`make_scheduler` takes the clock. Without jumps each step computes one token per decode:
        slower, for checking."""
        self.now_s = 0.0
        self.scheduler = make_scheduler(lambda: self.now_s)
        take_tokens_together(self.scheduler)
        self.counters = EngineCounters()
        self.turns: dict[str, LiveTurn] = {}
        self.transfers = Transfers(
            self.scheduler.connector, machine.pcie_bytes_s, machine.block_bytes
        )
        self._machine = machine
        self._on_end = on_end
        self._has_jumps = has_jumps
        self._prompt = [0] * machine.max_model_tokens
        self._is_settled = False
        self._jump_s: list[float] = []
        """End of each step of the jump under way, in seconds from its start."""
        self._blocked: Any = None
        """Output of the step under way that could run nothing; None if there is none."""
        self._wake_s = math.inf
        """Time at which what is under way ends by itself."""

    @property
    def wake_s(self) -> float:
        """Time of what it does next unless anything reaches it before; infinity while idle."""
        if self._jump_s or self._blocked is not None:
            return self._wake_s
        return self.now_s if self.turns else math.inf

    @property
    def num_free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    @property
    def _retention(self) -> Any:
        """The plugin's part in the scheduler; None under a stock policy."""
        return getattr(self.scheduler, "retention", None)

    @property
    def _next_expiry_s(self) -> float:
        """Time at which the next pin expires; infinity without pins."""
        expiry_s = None if self._retention is None else self._retention.pins.next_expiry_s
        return math.inf if expiry_s is None else float(expiry_s)

    def totals(self) -> dict[str, Any]:
        """Its own counters and, under our policies, the plugin's."""
        watchers = None if self._retention is None else self.scheduler.watchers
        return asdict(self.counters) | ({} if watchers is None else watchers.counters.totals())

    def events(self) -> dict[str, Any] | None:
        """The plugin's event log, as `GET /v1/agentkv/timestamps` answers; None without it."""
        return None if self._retention is None else dict(self.scheduler.watchers.log.as_dict())

    # Arrivals

    def send(self, turn: LiveTurn, now_s: float) -> None:
        """Take in the request of a turn."""
        self.reach(now_s)
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

    def signal(self, op: str, job_key: str, *args: Any, now_s: float) -> None:
        """Take in a tool event or a release."""
        self.reach(now_s)
        self._is_settled = False
        engine_side.call(self.scheduler, op, [job_key, *args])

    def reset(self, now_s: float) -> None:
        """Drop all KV; running turns are computed again, as after `pause(mode="keep")`.

        Raises RunError if turns run and the engine has a tier, whose loads cannot be stopped.
        """
        self.reach(now_s)
        if self.turns and self.scheduler.connector is not None:
            raise RunError("an update of the weights resets the cache, and a tier cannot be reset")
        self._is_settled = False
        for turn in self.turns.values():
            turn.is_admitted = False
            turn.known_tokens = turn.computed_tokens = 0
        self.scheduler.reset_prefix_cache(reset_running_requests=True)

    def reach(self, now_s: float) -> None:
        """End the step under way, if there is one, because something arrives now.

        A jump ends with its first step to end now or later.
        """
        if self._jump_s or self._blocked is not None:
            self._end(now_s)
            return
        while not self.turns and self.now_s < now_s:
            expiry_s = self._next_expiry_s
            self.now_s = max(self.now_s, min(now_s, expiry_s))
            if expiry_s <= now_s:
                self.scheduler.has_requests()  # what an idle engine does when its timer wakes it

    # Steps

    def run(self, until_s: float, *, blocked_until_s: float) -> None:
        """End what is under way, or begin a step.

        until_s: a jump stops there. blocked_until_s: if nothing can run, when to look again.
        """
        if self._jump_s or self._blocked is not None:
            self._end(self._wake_s)
            return
        self._take_stored()
        self._jump_s = self._plan_jump(until_s)
        if self._jump_s:
            self._wake_s = self.now_s + self._jump_s[-1]
        else:
            self._step([], blocked_until_s)

    def _end(self, now_s: float) -> None:
        if self._blocked is not None:
            output, self._blocked = self._blocked, None
            self.now_s = max(self.now_s, now_s)
            self._update_empty(output)
            return
        jump_s, self._jump_s = self._jump_s, []
        num_steps = bisect_left(jump_s, now_s - self.now_s) + 1
        self._step(jump_s[:num_steps], math.inf)

    def _plan_jump(self, until_s: float) -> list[float]:
        """End of each step of the jump that replaces the next step; empty for a single step."""
        num_running, num_waiting = self.scheduler.get_request_counts()
        if not self._has_jumps or not num_running or (num_waiting and not self._is_settled):
            return []
        transfers, retention = self.transfers, self._retention
        if retention is not None:  # a pin expires, or the policy looks at its jobs again
            next_tick_s = float(retention.admission.next_tick_s)
            until_s = min(until_s, self._next_expiry_s, next_tick_s)
        # a waiting turn perhaps waits for the end of a copy
        until_s = min(until_s, (transfers if num_waiting else transfers.loads).next_done_s)
        turns = [self.turns[request.request_id] for request in self.scheduler.running]
        left_s = until_s - self.now_s
        return plan_jump(turns, self._machine, num_free_blocks=self.num_free_blocks, left_s=left_s)

    def _step(self, jump_s: Sequence[float], blocked_until_s: float) -> None:
        """Run one step, or a jump of several."""
        started_s = self.now_s
        if len(jump_s) > 1:
            self.counters.jumps += 1
            drafts = self._prompt[: len(jump_s) - 1]
            for request in self.scheduler.running:
                request.spec_token_ids = drafts
        self._take_stored()
        output = self.scheduler.schedule()
        taken = self._machine.num_blocks - 1 - self.num_free_blocks  # one block is vLLM's own
        self.counters.peak_blocks = max(self.counters.peak_blocks, taken)
        self._start_loads()
        self._count_preempted(output.preempted_req_ids or ())
        if not output.num_scheduled_tokens:
            if output.preempted_req_ids:  # the last running turn: the next step has its room
                self._update_empty(output)
            else:
                self._blocked = output
                ends_s = (self.transfers.next_done_s, self._next_expiry_s)
                self._wake_s = min(blocked_until_s, *ends_s)
            return
        priced_s = jump_s[-1] if len(jump_s) > 1 else 0.0
        self.now_s = started_s + self._price(output.num_scheduled_tokens, priced_s)
        loaded = self.transfers.loads.take_done(self.now_s)
        num_ended = self._feed_back(output, loaded)
        self.transfers.start_stores(self.now_s)
        # If neither memory nor the token budget changed, the waiting queue cannot make progress.
        self._is_settled = not (
            num_ended
            or loaded
            or output.preempted_req_ids
            or output.total_num_scheduled_tokens >= self._machine.max_num_batched_tokens
        )

    def _update_empty(self, output: Any) -> None:
        self._is_settled = False
        loaded = self.transfers.loads.take_done(self.now_s)
        self.scheduler.update_from_output(output, runner_output([], [], loaded=loaded))

    def _price(self, scheduled: dict[str, int], jump_s: float) -> float:
        """Seconds of a step; a jump has been priced already, but for turns admitted with it."""
        self.counters.steps += 1
        batch = StepBatch()
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

    def _feed_back(self, output: Any, loaded: list[str]) -> int:
        """Hand the scheduler the tokens of a step; returns how many turns ended."""
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
        return self._note_tokens(results[0].outputs) if results else 0

    def _cache_full_blocks(self, turn: LiveTurn) -> None:
        """Enter the blocks that a jump filled into the prefix cache, as single steps would have:
        vLLM enters a block in the step after the one that samples its last token."""
        request, num_tokens = turn.request, turn.computed_tokens
        num_hashed = len(request.block_hashes)
        if num_tokens >= (num_hashed + 1) * self._machine.block_tokens:
            request.block_hashes.extend(turn.hashes.up_to(num_tokens, skip=num_hashed))
            self.scheduler.kv_cache_manager.cache_blocks(request, num_tokens)

    def _note_tokens(self, outputs: Iterable[Any]) -> int:
        """Note first tokens, hits and ends; returns how many turns ended."""
        num_before = len(self.turns)
        for output in outputs:
            turn = self.turns[output.request_id]
            if turn.first_token_s is None:
                turn.first_token_s = self.now_s
            if output.prefill_stats is not None:
                turn.cached_tokens = output.prefill_stats.num_cached_tokens
            if output.finish_reason is not None:
                turn.ended_s = self.now_s
                del self.turns[output.request_id]
                self._on_end(turn)
        return num_before - len(self.turns)

    def _count_admitted(self, turn: LiveTurn, hit_tokens: int) -> None:
        turn.is_admitted = True
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

    def _start_loads(self) -> None:
        for _, num_blocks in self.transfers.start_loads(self.now_s):
            self.counters.reloads += 1
            self.counters.reloaded_tokens += num_blocks * self._machine.block_tokens

    def _take_stored(self) -> None:
        if self.transfers.take_stored(self.now_s):
            self._is_settled = False

    def stuck_error(self) -> RunError:
        """The error of a run in which nothing will ever give this engine's turns memory."""
        waiting = ", ".join(sorted(self.turns)[:5])
        return RunError(
            f"{len(self.turns)} turns wait for memory that nothing will free ({waiting}); "
            f"{self.num_free_blocks} of {self._machine.num_blocks} blocks are free"
        )
