"""Learns what an engine's time goes into, and so what it costs to compute a context anew."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from agentkv.durations.ttl import PrefillReload

from .least_squares import fit_above_zero

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
