"""Learns PrefillReload, the cost of rebuilding a context, from the server's own prefills."""

from __future__ import annotations

from collections import deque

import numpy as np

from agentkv.ttl import PrefillReload

from .least_squares import fit_above_zero

MIN_PREFILLS = 8
"""Prefills seen before the quadratic is trusted; until then seconds per token is used."""
REFIT_EVERY = 16
"""Prefills between two fits: a fit of the full window takes about 50 microseconds."""


class PrefillFit:
    """Least-squares fit of c0 + c1 * n + c2 * n^2 to the prefills seen last.

    A prefill that found `hit_tokens` of `num_tokens` in the cache took the difference of the
    curve at the two, plus c0. Coefficients are zero or more, so that a longer context never looks
    cheaper. Bounded: 256 prefills, about 20 KiB.
    Source: PrefillReload, Continuum (arXiv 2511.02230 v6), there profiled offline.
    """

    step_s = 0.0
    """Is in the seconds that a prefill takes."""
    worth = 1.0
    """Continuum knows no price of computing but the seconds that it takes."""

    def __init__(self, given: PrefillReload | None = None) -> None:
        self._given = given
        self._seen: deque[tuple[int, int, float]] = deque(maxlen=256)
        self._since_fit = 0
        self.reload = given or PrefillReload()

    def observe(self, hit_tokens: int, num_tokens: int, elapsed_s: float) -> None:
        """Add one prefill: seconds from its first scheduled chunk to its first token."""
        if self._given is not None or num_tokens <= hit_tokens:
            return
        self._seen.append((hit_tokens, num_tokens, elapsed_s))
        self._since_fit += 1
        if len(self._seen) < MIN_PREFILLS:
            self.reload = self._rate()
        elif self._since_fit >= REFIT_EVERY or len(self._seen) == MIN_PREFILLS:
            self._since_fit = 0
            self.reload = self._fit()

    def _rate(self) -> PrefillReload:
        computed = sum(total - hit for hit, total, _ in self._seen)
        return PrefillReload(linear_s=sum(elapsed for *_, elapsed in self._seen) / computed)

    def _fit(self) -> PrefillReload:
        seen = np.array(self._seen, dtype=np.float64)
        hit, total, elapsed_s = seen[:, 0], seen[:, 1], seen[:, 2]
        columns = np.stack([np.ones_like(hit), total - hit, total**2 - hit**2], axis=1)
        return PrefillReload.from_coefficients(fit_above_zero(columns, elapsed_s))
