"""What it costs to restore a context whose KV has left the GPU, learned from the engine itself.

The scheduler reports steps, loads and block counts; the policies ask `RestoreCostModel`. Knows
nothing of jobs, pins or vLLM. Every call is O(1), except for a fit every few steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentkv.durations.ttl import PrefillReload
from agentkv.policies.costs import RestoreCost

from . import CacheGroup, KVPool

MIN_PREFILLS = 8
"""Steps with prefills seen before the fit is trusted; until then seconds per token is used."""
REFIT_EVERY = 16
"""Steps with prefills between two fits, which take about 100 microseconds each."""
WINDOW = 512
"""Rows kept: each step with prefills is one, the sums over the steps between two are another."""
MIN_FIXED_SHARE = 0.05
"""Bounds `compute_weight` at 20."""
MIN_EVENTS = 8
"""Loads and losses seen before OffloadStats reports a share."""
KEPT = 1.0 - 1.0 / 64.0
"""Weight of each observation relative to the next one, where a mean follows the last 64 or so."""


class BlocksPerToken:
    """Counts the blocks of a context, in all KV cache groups.

    Layers with full attention need a block for every `block_tokens` tokens; layers with a sliding
    window or a state need no more than a few.
    """

    def __init__(self, pool: KVPool) -> None:
        self._groups = pool.groups or (CacheGroup(pool.block_tokens),)
        self._block_tokens = pool.block_tokens
        self._num_tokens = self._num_blocks = 0.0
        self.varies = any(group.most_blocks is not None for group in self._groups)
        """A longer context may have no more blocks: only then `observe` and `growth` say more."""
        per_block = (pool.block_tokens / group.block_tokens for group in self._groups)
        self.scale = 1.0 if self.varies else sum(per_block)
        """Mean number of blocks of a context per `block_tokens`; if it varies, 1 until observed."""

    def observe(self, num_tokens: int) -> None:
        """Record a finished context."""
        self._num_tokens = KEPT * self._num_tokens + num_tokens
        self._num_blocks = KEPT * self._num_blocks + self.blocks(num_tokens)
        if self._num_tokens:
            self.scale = self._num_blocks / self._num_tokens * self._block_tokens

    def blocks(self, num_tokens: int, *, is_held: bool = False) -> int:
        """Return the blocks of a request of `num_tokens`, running or, if `is_held`, pinned."""
        num_blocks = 0
        for group in self._groups:
            most = inf if group.most_blocks is None else group.most_blocks + (not is_held)
            num_blocks += int(min(most, -(-num_tokens // group.block_tokens)))
        return num_blocks

    def growth(self, num_tokens: int) -> float:
        """Return how many blocks, in the mean, one more token adds to a context of `num_tokens`."""
        num_blocks = 0.0
        for group in self._groups:
            most = inf if group.most_blocks is None else group.most_blocks * group.block_tokens
            num_blocks += 1.0 / group.block_tokens if num_tokens <= most else 0.0
        return num_blocks


class Step(NamedTuple):
    """Says what one engine step computes, and what memory holds meanwhile.

    For a prompt of n tokens of which h were in the cache or computed before, `prefill_tokens`
    counts n - h and `prefill_squares` n^2 - h^2.
    """

    prefill_tokens: int
    prefill_squares: int
    running_tokens: float
    """Tokens of KV that running requests hold."""
    idle_share: float
    """Share of the pool that pins hold, 0 to 1."""
    num_steps: int = 1
    """More than 1 in the simulator, which plays several steps at once."""


class StepTimeModel:
    """Fits the seconds of a step to what it computes, with coefficients of 0 or more.

        seconds = fixed + c1 * prefill tokens + c2 * prefill squares + c3 * running tokens

    `fixed` is independent of the number of requests (the weights are read once). Bounded: WINDOW
    rows, 24 KiB. Source: Continuum (arXiv 2511.02230 v6) fits its PrefillReload offline, to prompts
    alone.
    """

    def __init__(self, given: PrefillReload | None = None) -> None:
        """`given` fixes the prefill coefficients, which are then not learned."""
        self._given = given
        self._rows = np.zeros((WINDOW, 6))
        self._num_rows = 0
        self._num_prefills = 0
        self._between = [0.0, 0.0, 0.0, 0.0]
        self.reload = given or PrefillReload()
        """Seconds that prefilling n tokens adds to the engine's steps."""
        self.step_s = 0.0
        """Seconds of a step that computes next to nothing; 0 where `reload` is given."""
        self.compute_weight = 1.0
        """Seconds of the whole pool's memory that one second of prefill is worth.

        A prefill stalls the running turns: a second of it costs their share of the pool. More
        memory lets more turns run at once, which saves only the fixed part of a step. With p
        seconds of prefill a turn, d of decoding alone and R turns at once the engine completes
        1 / (p + d / R) turns a second; the weight is the ratio of the derivatives by p and by R,
        with R in pools.
        """

    def observe(self, step: Step, elapsed_s: float) -> None:
        """Record one step and its duration."""
        if not step.prefill_tokens:
            between = self._between
            between[0] += step.num_steps
            between[1] += step.num_steps * step.running_tokens
            between[2] += elapsed_s
            between[3] += elapsed_s * step.idle_share
            return
        count, running_tokens, between_s, idle_s = self._between
        if count:
            self._add((count, 0, 0, running_tokens, between_s, idle_s))
            self._between = [0.0, 0.0, 0.0, 0.0]
        prefill = (step.prefill_tokens, step.prefill_squares, step.running_tokens)
        self._add((1, *prefill, elapsed_s, elapsed_s * step.idle_share))
        self._num_prefills += 1
        if self._num_prefills <= MIN_PREFILLS or self._num_prefills % REFIT_EVERY == 0:
            self._fit()

    def _add(self, row: tuple[float, ...]) -> None:
        self._rows[self._num_rows % WINDOW] = row
        self._num_rows += 1

    def _fit(self) -> None:
        amounts, elapsed_s, idle_s = self._rows[:, :4], self._rows[:, 4], self._rows[:, 5]
        if self._num_prefills < MIN_PREFILLS:
            linear_s = elapsed_s[amounts[:, 1] > 0].sum() / amounts[:, 1].sum()
            self._use(0.0, PrefillReload(linear_s=float(linear_s)))
            return
        fixed_s, linear_s, quadratic_s, _ = fit_above_zero(amounts, elapsed_s)
        self._use(fixed_s, PrefillReload(0.0, linear_s, quadratic_s))
        total_s = elapsed_s.sum()
        if total_s > 0:
            fixed_share = min(1.0, float(fixed_s * amounts[:, 0].sum() / total_s))
            running_share = 1.0 - float(idle_s.sum() / total_s)
            self.compute_weight = running_share / max(fixed_share, MIN_FIXED_SHARE)

    def _use(self, fixed_s: float, reload: PrefillReload) -> None:
        if self._given is None:
            self.step_s, self.reload = fixed_s, reload


def fit_above_zero(columns: NDArray[np.float64], values: NDArray[np.float64]) -> list[float]:
    """Least-squares coefficients, one per column, all of 0 or more.

    Drops the column with the most negative coefficient until none is negative.
    """
    fitted = [0.0] * columns.shape[1]
    active = list(range(columns.shape[1]))
    while active:
        coefficients, *_ = np.linalg.lstsq(columns[:, active], values, rcond=None)
        if coefficients.min() >= 0:
            for column, coefficient in zip(active, coefficients, strict=True):
                fitted[column] = float(coefficient)
            break
        del active[int(coefficients.argmin())]
    return fitted


class OffloadStats:
    """Learns what share of evicted context a KV connector loads back, and how fast.

    The rest of it is lost and must be recomputed. Without a connector nothing is ever loaded.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._loading: dict[str, tuple[int, float]] = {}
        self._num_events = 0
        self._loaded_tokens = self._load_s = self._lost_tokens = 0.0
        self.loaded_share = 0.0
        """Share of evicted tokens that were loaded back, 0 to 1."""
        self.load_token_s = 0.0
        """Mean seconds of loading per token; 0 if nothing was loaded."""

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    def load_began(self, request_id: str, num_tokens: int) -> None:
        """Note that the connector starts to load `num_tokens` into the blocks of a request."""
        self._loading[request_id] = (num_tokens, self._clock())

    def loads_finished(self, request_ids: Iterable[str]) -> float:
        """Learn from the KV loads of these requests, which have finished.

        Returns the memory that waited for them, in token-seconds.
        """
        waited_token_s = 0.0
        for request_id in request_ids:
            if request_id in self._loading:
                num_tokens, began_s = self._loading.pop(request_id)
                load_s = self._clock() - began_s
                self._add(num_tokens, load_s, 0)
                waited_token_s += num_tokens * load_s
        return waited_token_s

    def paused(self) -> None:
        """Forget the loads under way: in a pause they take longer than they do otherwise."""
        self._loading.clear()

    def lost(self, num_tokens: int) -> None:
        """Note that a turn recomputes `num_tokens` of its job's context."""
        self._add(0, 0.0, num_tokens)

    def forget(self, request_id: str) -> None:
        """Forget a request that has ended."""
        self._loading.pop(request_id, None)

    def _add(self, loaded_tokens: int, load_s: float, lost_tokens: int) -> None:
        self._num_events += 1
        self._loaded_tokens = KEPT * self._loaded_tokens + loaded_tokens
        self._load_s = KEPT * self._load_s + load_s
        self._lost_tokens = KEPT * self._lost_tokens + lost_tokens
        if self._loaded_tokens:
            self.load_token_s = self._load_s / self._loaded_tokens
        if self._num_events >= MIN_EVENTS:
            self.loaded_share = self._loaded_tokens / (self._loaded_tokens + self._lost_tokens)


class RestoreCostModel:
    """Prices contexts by what the engine's steps and loads have taken so far."""

    def __init__(
        self, pool: KVPool, given: PrefillReload | None, clock: Callable[[], float]
    ) -> None:
        """`given` are the prefill coefficients of the settings, if any; `clock` is monotonic."""
        self.step_time = StepTimeModel(given)
        self.offload = OffloadStats(clock)
        self.blocks_per_token = BlocksPerToken(pool)
        self._pool = pool

    def cost(self, num_tokens: int) -> RestoreCost:
        """Return the cost of restoring a context of `num_tokens`."""
        held_tokens: float = num_tokens
        if not self._pool.has_one_group:
            num_blocks = self.blocks_per_token.blocks(num_tokens, is_held=True)
            held_tokens = num_blocks * self._pool.block_tokens
        return RestoreCost(
            held_tokens,
            self.step_time.reload.seconds(num_tokens),
            self.offload.load_token_s * num_tokens,
            self.offload.loaded_share,
            self.step_time.compute_weight,
            self.step_time.step_s,
        )
