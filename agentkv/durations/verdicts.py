"""From a distribution of durations to a verdict and the prediction that carries it."""

from __future__ import annotations

from agentkv.durations.prediction import FAST_S, SLOW_S, SURE, Distribution, Prediction, Speed

UNCERTAIN_TTL_S = 2.0
"""What an uncertain command's pin gets where nobody knows better: Continuum's TTL at cold start."""
TTL_SHARE = 0.9
"""Share of its runs that a fast command's pin outlasts. Source: ContextServe."""


def verdict(distribution: Distribution, sure: float = SURE) -> Speed:
    """FAST if it surely ends within FAST_S, SLOW if it surely runs for longer than SLOW_S."""
    if 1.0 - distribution.p_over(FAST_S) > sure:
        return "fast"
    return "slow" if distribution.p_over(SLOW_S) > sure else "uncertain"


def prediction(
    speed: Speed, distribution: Distribution, *, fast_ttl_s: float, source: str, explanation: str
) -> Prediction:
    """The prediction with this verdict; `fast_ttl_s` counts only where the verdict is fast."""
    ttl_s = {"fast": fast_ttl_s, "slow": 0.0, "uncertain": UNCERTAIN_TTL_S}[speed]
    return Prediction(
        speed=speed,
        p50_s=distribution.quantile_s(0.5),
        p90_s=distribution.quantile_s(0.9),
        ttl_s=ttl_s,
        source=source,
        explanation=explanation,
        distribution=distribution,
    )


def counted(count: int, noun: str) -> str:
    """`1 run`, `12 runs`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def summary(distribution: Distribution) -> str:
    """The numbers that matter for a pin, as the end of a sentence."""
    return (
        f"half end within {_rounded(distribution.quantile_s(0.5))} s, "
        f"{1 - distribution.p_over(FAST_S):.0%} within {FAST_S:g} s, "
        f"{distribution.p_over(SLOW_S):.0%} take over {SLOW_S:g} s."
    )


def _rounded(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.2g}"
