"""How long idle memory is worth holding for something that may come back; pure arithmetic."""

from __future__ import annotations

from collections.abc import Callable

SHARES = (0.0, 0.03, 0.06, 0.12, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Hold times that are weighed, as shares of the price."""


def best_hold_s(p_over: Callable[[float], float], price_s: float) -> float:
    """The hold time, of SHARES times `price_s`, with the least expected cost.

    `p_over(seconds)` is the probability that it takes longer to come back; `price_s` is what it
    costs if it was let go before, in the same seconds that holding costs: the rent-or-buy problem
    with a known distribution. Without one, holding for the price itself costs at most twice the
    least (Karlin et al., Competitive snoopy caching, 1988).
    """
    best_s, least_s = 0.0, price_s
    held_s, last_s, last_p = 0.0, 0.0, 1.0
    for share in SHARES[1:]:
        hold_s = share * price_s
        p = p_over(hold_s)
        held_s += (hold_s - last_s) * (last_p + p) / 2.0
        last_s, last_p = hold_s, p
        if held_s + p * price_s < least_s:
            best_s, least_s = hold_s, held_s + p * price_s
    return best_s
