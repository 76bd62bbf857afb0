"""How much of the pool a context takes, where layers differ and each kind has blocks of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentkv.durations.ttl import PrefillReload

MEMORY = 64.0
"""Requests that count, about: each one before counts by 1/64 less."""


class Footprint:
    """Blocks of a context: those that its tokens fill, times what requests that ended have had.

    Layers with full attention have a block for each of those, layers with a sliding window or a
    state only what they need. Every call is O(1).
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._num_tokens = self._num_blocks = 0.0

    def measured(self, num_tokens: int, num_blocks: int) -> None:
        """A context of so many tokens had so many blocks, of all kinds together."""
        kept = 1.0 - 1.0 / MEMORY
        self._num_tokens = kept * self._num_tokens + num_tokens
        self._num_blocks = kept * self._num_blocks + num_blocks

    @property
    def scale(self) -> float:
        """Blocks of all kinds for each block of tokens; 1 until something was measured."""
        if not self._num_tokens:
            return 1.0
        return self._num_blocks * self._block_tokens / self._num_tokens

    def blocks(self, num_tokens: int) -> float:
        """Blocks of a context."""
        return -(-num_tokens // self._block_tokens) * self.scale

    def more_blocks(self, num_tokens: float) -> float:
        """Blocks by which a context grows with so many tokens, on average."""
        return num_tokens / self._block_tokens * self.scale


# MERGED: Learns what an engine's time goes into, and so what it costs to compute a context
# MERGED: anew.

MIN_PREFILLS = 8
"""Steps with prefills seen before the fit is trusted; until then seconds per token is used."""
REFIT_EVERY = 16
"""Steps with prefills between two fits, which take about 100 microseconds each."""
WINDOW = 512
"""Rows known: a step with prefills is one, the sums of those between two such another."""
LEAST_FIXED_SHARE = 0.05
"""Bounds `worth` at 20, whatever is measured."""


class Step(NamedTuple):
    """What an engine's step computes, and what its memory holds meanwhile.

    Of a prompt of n tokens, h of them in the cache or computed before, the step computes n - h, and
    n^2 - h^2 goes into the squares.
    """

    prefill_tokens: int
    prefill_squares: int
    running_tokens: float
    """Tokens whose KV running requests have."""
    idle_share: float
    """Part of the pool that pins have, 0 to 1."""
    num_steps: int = 1
    """The simulator plays several steps at once."""


class StepFit:
    """Fits the seconds of a step to what it computes, by least squares, coefficients zero or more:

        fixed + c1 * tokens + c2 * squares + c3 * running tokens

    `fixed` is what a step takes for however many requests (the weights are read once), the next two
    what prompts add to it. Bounded: WINDOW rows, 24 KiB.
    Source: Continuum (arXiv 2511.02230 v6) fits its PrefillReload offline, to prompts alone.
    """

    def __init__(self, given: PrefillReload | None = None) -> None:
        self._given = given
        self._rows = np.zeros((WINDOW, 6))
        self._num_rows = 0
        self._num_prefills = 0
        self._between = [0.0, 0.0, 0.0, 0.0]
        self.reload = given or PrefillReload()
        """Seconds that computing a context of n tokens adds to the steps of an engine."""
        self.step_s = 0.0
        """Seconds that a step takes that computes next to nothing; 0 where `reload` is given."""
        self.worth = 1.0
        """Seconds of the whole pool's memory that a second of computing is worth.

        A prefill stops the turns that run: a second of it costs what they have of the pool. More
        memory lets more turns run at once, and that saves only what a step takes for however many:
        a second of the whole pool is worth `fixed` seconds out of every second. With p seconds of
        prefill a turn, d of decoding alone and R turns at once the engine ends 1 / (p + d / R)
        turns a second; this is the ratio of its derivatives by p and by R, R in pools.
        """

    def observe(self, step: Step, elapsed_s: float) -> None:
        """Add one step that took so long. O(1), but for a fit now and then."""
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
            self._take(0.0, PrefillReload(linear_s=float(linear_s)))
            return
        fixed_s, linear_s, quadratic_s, _ = fit_above_zero(amounts, elapsed_s)
        self._take(fixed_s, PrefillReload(0.0, linear_s, quadratic_s))
        total_s = elapsed_s.sum()
        if total_s > 0:
            fixed_share = min(1.0, float(fixed_s * amounts[:, 0].sum() / total_s))
            running_share = 1.0 - float(idle_s.sum() / total_s)
            self.worth = running_share / max(fixed_share, LEAST_FIXED_SHARE)

    def _take(self, fixed_s: float, reload: PrefillReload) -> None:
        if self._given is None:
            self.step_s, self.reload = fixed_s, reload


# MERGED: A linear fit whose coefficients are never negative.


def fit_above_zero(columns: NDArray[np.float64], values: NDArray[np.float64]) -> list[float]:
    """Coefficients, one per column, of the least squares fit; the most negative is left out
    until none is."""
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


# MERGED: Learns what a KV connector gives back of contexts that had left the GPU, and how
# MERGED: fast.

MIN_EVENTS = 8
"""Loads and losses seen before anything is said."""
MEMORY = 64.0
"""Loads and losses that count, about: each one before counts by 1/64 less."""


class TierWatch:
    """Follows the loads of one engine, times in seconds on `clock`.

    Of a context that had left the GPU some is loaded; the rest is lost, and computed anew. Without
    a connector nothing is ever loaded. O(1), but for the loads under way.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._loading: dict[str, tuple[int, float]] = {}
        self._num_events = 0
        self._loaded_tokens = self._load_s = self._lost_tokens = 0.0

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    def load_began(self, request_id: str, num_tokens: int) -> None:
        """A request has its blocks; so many tokens are to be loaded into them."""
        self._loading[request_id] = (num_tokens, self._clock())

    def loads_done(self, request_ids: Iterable[str]) -> float:
        """Whatever these had to load is on the GPU; returns the token-seconds of memory in which it
        was waited for."""
        waited_token_s = 0.0
        for request_id in request_ids:
            if request_id in self._loading:
                num_tokens, began_s = self._loading.pop(request_id)
                load_s = self._clock() - began_s
                self._age()
                self._loaded_tokens += num_tokens
                self._load_s += load_s
                waited_token_s += num_tokens * load_s
        return waited_token_s

    def lost(self, num_tokens: int) -> None:
        """A turn computes so many tokens of its job's context anew."""
        self._age()
        self._lost_tokens += num_tokens

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._loading.pop(request_id, None)

    @property
    def loaded_share(self) -> float:
        """Of the tokens that had left the GPU the share that was loaded, from 0 to 1."""
        if self._num_events < MIN_EVENTS:
            return 0.0
        return self._loaded_tokens / (self._loaded_tokens + self._lost_tokens)

    @property
    def load_token_s(self) -> float:
        """Seconds that a loaded token was waited for; 0 if none was."""
        return self._load_s / self._loaded_tokens if self._loaded_tokens else 0.0

    def _age(self) -> None:
        self._num_events += 1
        kept = 1.0 - 1.0 / MEMORY
        self._loaded_tokens *= kept
        self._load_s *= kept
        self._lost_tokens *= kept


# MERGED: What it takes to have a context again that has left the GPU.


class Rebuild(NamedTuple):
    """The price of one context: `seconds` to compute it anew; from a tier `load_s` to load it, and
    of what leaves the GPU it gives back `loaded_share` (0: there is none). It fills `num_tokens` of
    the pool. A second of computing is worth `worth` seconds of the whole pool (see StepFit).
    `step_s` is what a step takes for however little."""

    num_tokens: float
    seconds: float
    load_s: float = 0.0
    loaded_share: float = 0.0
    worth: float = 1.0
    step_s: float = 0.0

    @property
    def alone_s(self) -> float:
        """Seconds that it takes to compute it with nothing beside it."""
        return self.step_s + self.seconds

    @property
    def pool_s(self) -> float:
        """What computing it anew costs, in seconds of the whole pool."""
        return self.seconds * self.worth


class Prices:
    """Prices contexts by what the engine's steps and loads have taken so far."""

    def __init__(self, step_fit: StepFit, tier: TierWatch, footprint: Footprint) -> None:
        self._step_fit = step_fit
        self._tier = tier
        self._footprint = footprint

    def rebuild(self, num_tokens: int) -> Rebuild:
        """What it takes to have a context of so many tokens again."""
        return Rebuild(
            num_tokens * self._footprint.scale,
            self._step_fit.reload.seconds(num_tokens),
            self._tier.load_token_s * num_tokens,
            self._tier.loaded_share,
            self._step_fit.worth,
            self._step_fit.step_s,
        )
