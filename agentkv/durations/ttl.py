"""How long idle KV is worth keeping: Continuum's time-to-live, and the rent-or-buy TTL.

Pure arithmetic on measured durations, called by the policies of the vLLM plugin. It knows nothing
of vLLM, blocks or clocks. Source for the TTL: Continuum, arXiv 2511.02230 v6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from agentkv.durations.windows import DurationWindow, Memoryfulness, ToolDurations

QUEUEING_WINDOW = 100
"""Queueing delays kept."""
HOLD_SHARES = (0.0, 0.03, 0.06, 0.12, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""TTLs that are weighed, as shares of the price."""


@dataclass(frozen=True, slots=True)
class PrefillReload:
    """Seconds to rebuild the KV of n tokens: constant + linear * n + quadratic * n^2."""

    constant_s: float = 0.0
    linear_s: float = 0.0
    quadratic_s: float = 0.0

    def seconds(self, num_tokens: int) -> float:
        return self.constant_s + num_tokens * (self.linear_s + num_tokens * self.quadratic_s)


@dataclass(frozen=True, slots=True)
class TTL:
    """A time-to-live in seconds, and a few words on where it came from."""

    seconds: float
    reason: str


@dataclass(slots=True)
class ContinuumTTL:
    """tau* = argmax over tau of P(tau, f) * (T * eta + PrefillReload) - tau.

    Cold start: with fewer than `cold_start_samples` (K) durations in all, `cold_start_ttl_s`; with
    fewer than K for the tool, the distribution over all tools.
    """

    cold_start_ttl_s: float = 2.0
    cold_start_samples: int = 100
    durations: ToolDurations = field(default_factory=ToolDurations)
    queueing: DurationWindow = field(default_factory=lambda: DurationWindow(QUEUEING_WINDOW))
    """Queueing delays of turns whose cache had been evicted; their mean is T."""
    memoryfulness: Memoryfulness = field(default_factory=Memoryfulness)

    def ttl(self, tool: str | None, reload_s: float) -> TTL:
        """Return the TTL of a turn that runs `tool`; rebuilding its context costs `reload_s`."""
        if self.durations.num_observed < self.cold_start_samples:
            seen = f"{self.durations.num_observed} of {self.cold_start_samples} durations"
            return TTL(self.cold_start_ttl_s, f"cold start: {seen}")
        window, name = self.durations.of(tool), f"tool {tool!r}"
        if window is None or len(window) < self.cold_start_samples:
            window, name = self.durations.over_all, "all tools"
        benefit_s = self.queueing.mean_s * self.memoryfulness.eta + reload_s
        seconds = window.best_ttl_s(benefit_s)
        return TTL(seconds, f"{name}, {len(window)} durations, benefit {benefit_s:.3f} s")


@dataclass(slots=True)
class FixedTTL:
    """The released Continuum's TTL: fixed, and no pin for a tool whose mean exceeds it."""

    ttl_s: float = 2.0
    durations: ToolDurations = field(default_factory=ToolDurations)

    def ttl(self, tool: str | None) -> TTL:
        window = self.durations.of(tool)
        if window is not None and window.mean_s > self.ttl_s:
            return TTL(0.0, f"tool {tool!r} takes {window.mean_s:.2f} s on average")
        return TTL(self.ttl_s, "fixed")


def best_hold_s(p_over: Callable[[float], float], price_s: float) -> float:
    """Return the TTL, of HOLD_SHARES times `price_s`, with the least expected cost.

    `p_over(seconds)` is the probability that idle memory is needed again later than that;
    `price_s` is what rebuilding costs, in the same seconds that pinning costs: the rent-or-buy
    problem with a known distribution. Without one, pinning for the price itself costs at most twice
    the least (Karlin et al., Competitive snoopy caching, 1988).
    """
    best_s, least_s = 0.0, price_s
    held_s, last_s, last_p = 0.0, 0.0, 1.0
    for share in HOLD_SHARES[1:]:
        hold_s = share * price_s
        p = p_over(hold_s)
        held_s += (hold_s - last_s) * (last_p + p) / 2.0
        last_s, last_p = hold_s, p
        if held_s + p * price_s < least_s:
            best_s, least_s = hold_s, held_s + p * price_s
    return best_s
