"""Student's t distribution in plain Python: tail areas, density and quantiles.

It holds for any positive number of degrees of freedom and knows nothing of durations. Tail areas
keep their relative precision far out, where `1 - cdf` would have lost it.
"""

import math
from functools import lru_cache
from statistics import NormalDist

# Below this distance from the middle the central area is summed, beyond it the tail: the central
# series needs fewer terms, but what it leaves for the tail is then all cancellation.
_MAX_CENTRAL_T = 6.0
_PRECISION = 1e-15
_MAX_NEWTON_STEPS = 200


def t_survival(t: float, num_degrees: float) -> float:
    """The probability that a Student-t variable exceeds t."""
    if t < 0:
        return 1.0 - t_survival(-t, num_degrees)
    square = t * t
    if square > min(num_degrees, _MAX_CENTRAL_T**2):
        return 0.5 * _incomplete_beta(num_degrees / (num_degrees + square), num_degrees / 2, 0.5)
    return 0.5 - 0.5 * _incomplete_beta(square / (num_degrees + square), 0.5, num_degrees / 2)


def t_density(t: float, num_degrees: float) -> float:
    """The density of a Student-t variable at t."""
    return math.exp(
        _log_density_at_zero(num_degrees) - (num_degrees + 1) / 2 * math.log1p(t * t / num_degrees)
    )


@lru_cache(maxsize=4096)
def t_quantile(share: float, num_degrees: float) -> float:
    """The t below which this share (0 < share < 1) of a Student-t variable lies.

    Newton's steps on the survival function, from the normal quantile: that one lies on the side
    from which the convex tail lets no step overshoot.
    """
    if share == 0.5:
        return 0.0
    if share < 0.5:
        return -_upper_quantile(share, num_degrees)
    return _upper_quantile(1.0 - share, num_degrees)


def _upper_quantile(tail: float, num_degrees: float) -> float:
    t = -NormalDist().inv_cdf(tail)
    for _ in range(_MAX_NEWTON_STEPS):
        step = (t_survival(t, num_degrees) - tail) / t_density(t, num_degrees)
        t += step
        if abs(step) <= 1e-13 * (1.0 + t):
            break
    return t


@lru_cache(maxsize=1024)
def _log_density_at_zero(num_degrees: float) -> float:
    return (
        math.lgamma((num_degrees + 1) / 2)
        - math.lgamma(num_degrees / 2)
        - 0.5 * math.log(num_degrees * math.pi)
    )


@lru_cache(maxsize=2048)
def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b) for 0 <= x < 1. Source: DLMF 8.17.8, a series of positive terms."""
    if x <= 0.0:
        return 0.0
    term = math.exp(a * math.log(x) + b * math.log1p(-x) - _log_beta(a, b)) / a
    total = term
    while term > total * _PRECISION:
        term *= x * (a + b) / (a + 1.0)
        total += term
        a += 1.0
    return total
