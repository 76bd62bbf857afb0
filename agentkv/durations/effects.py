"""What each part of a command adds to ln(seconds): a linear model that learns from every run.

One weight per part (a program, an option, a target), each with a mean and a variance of its own;
a run moves the uncertain ones most. Source: assumed-density filtering, the Kalman update of a
linear model with the covariance kept diagonal.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

PRIOR_VARIANCE = 0.1
"""Of a weight never seen: one part alone seldom makes a command e^0.6 = 1.9 times slower."""
NOISE_VARIANCE = 0.9
"""Of ln(seconds) between runs alike in all parts."""
DRIFT_VARIANCE = 0.002
"""Added at each run: projects and networks change, and old weights must give way."""
MAX_WEIGHTS = 8192
_MAX_SURPRISE = 2.0
"""Standard deviations beyond which a run counts no more: one that hung should not teach much."""


class Effects:
    """At most MAX_WEIGHTS weights, those of the parts seen last."""

    def __init__(self) -> None:
        self._weights: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def mean_and_variance(self, parts: Sequence[str]) -> tuple[float, float]:
        """What these parts together add to ln(seconds), and how uncertain that is."""
        mean = variance = 0.0
        for part in parts:
            weight = self._weights.get(part)
            if weight is None:
                variance += PRIOR_VARIANCE
            else:
                mean += weight[0]
                variance += weight[1]
        return mean, variance

    def observe(self, parts: Sequence[str], added: float) -> None:
        """Learn that these parts together added `added` to ln(seconds)."""
        mean, variance = self.mean_and_variance(parts)
        total = variance + NOISE_VARIANCE
        bound = _MAX_SURPRISE * math.sqrt(total)
        step = min(max(added - mean, -bound), bound) / total
        for part in parts:
            weight, own = self._weights.pop(part, (0.0, PRIOR_VARIANCE))
            kept = own * (1.0 - own / total) + DRIFT_VARIANCE
            self._weights[part] = (weight + own * step, min(kept, PRIOR_VARIANCE))
        while len(self._weights) > MAX_WEIGHTS:
            self._weights.popitem(last=False)

    def state(self) -> list[list[Any]]:
        return [[part, round(w, 4), round(v, 5)] for part, (w, v) in self._weights.items()]

    def restore(self, state: list[list[Any]]) -> None:
        """Raises TypeError or ValueError where the data does not fit."""
        self._weights.clear()
        for part, weight, variance in state[-MAX_WEIGHTS:]:
            if not (isinstance(part, str) and abs(weight) < 50 and 0 <= variance <= 10):
                raise ValueError(f"not a weight: {part!r:.80}, {weight!r:.20}, {variance!r:.20}")
            self._weights[part] = (float(weight), float(variance))
