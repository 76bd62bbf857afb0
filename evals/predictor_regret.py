"""What a predictor's TTLs would cost, against knowing each duration beforehand.

One context, in seconds of its own memory: held while the tool runs (until the TTL at most), and
`reload_s` if it must be rebuilt. A tool longer than the TTL costs both; a TTL of 0 costs the
rebuild alone. The oracle pins exactly the tools shorter than a rebuild. No queue, no pressure.
Source: the trade in Continuum's objective, P(tau) * benefit - tau (arXiv 2511.02230 v6).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .predictor_replay import Forecast

FIXED_TTL_S = 2.0
"""The released Continuum's TTL, and what 7.4 s of benefit make best for Exp(1) durations."""


def ttl_costs(
    durations_s: Sequence[float], ttls_s: Sequence[float], *, reload_s: float, context_blocks: int
) -> dict[str, Any]:
    """Seconds held, held in vain and rebuilt, and the regret per turn, of one TTL per tool call."""
    pairs = list(zip(durations_s, ttls_s, strict=True))
    held_s = sum(min(duration_s, ttl_s) for duration_s, ttl_s in pairs)
    in_vain_s = sum(ttl_s for duration_s, ttl_s in pairs if duration_s > ttl_s)
    num_rebuilds = sum(_is_rebuilt(duration_s, ttl_s) for duration_s, ttl_s in pairs)
    cost_s = held_s + reload_s * num_rebuilds
    oracle_s = sum(min(duration_s, reload_s) for duration_s in durations_s)
    num_turns = max(1, len(pairs))
    return {
        "num_turns": len(pairs),
        "held_block_s": held_s * context_blocks,
        "held_in_vain_block_s": in_vain_s * context_blocks,
        "rebuilds": num_rebuilds,
        "rebuilt_blocks": num_rebuilds * context_blocks,
        "cost_s_per_turn": cost_s / num_turns,
        "oracle_s_per_turn": oracle_s / num_turns,
        "regret_s_per_turn": (cost_s - oracle_s) / num_turns,
        "regret_block_s": (cost_s - oracle_s) * context_blocks,
    }


def forecast_costs(
    forecasts: Sequence[Forecast], *, reload_s: float, context_blocks: int
) -> dict[str, Any]:
    """The costs of the TTLs that these forecasts lead to; rows of at most 3 s are left out."""
    known = _decided(forecasts)
    return ttl_costs(
        [forecast.row.duration_s for forecast in known],
        [forecast.effective_ttl_s for forecast in known],
        reload_s=reload_s,
        context_blocks=context_blocks,
    )


def baseline_costs(
    forecasts: Sequence[Forecast], *, reload_s: float, context_blocks: int
) -> dict[str, dict[str, Any]]:
    """The same rows without a predictor: never pinned, a fixed TTL, Continuum's, the oracle's."""
    known = _decided(forecasts)
    durations_s = [forecast.row.duration_s for forecast in known]
    policies = {
        "never pinned": [0.0] * len(known),
        f"fixed {FIXED_TTL_S:g} s": [FIXED_TTL_S] * len(known),
        "continuum": [forecast.continuum_ttl_s for forecast in known],
        "oracle": [reload_s if d < reload_s else 0.0 for d in durations_s],
    }
    return {
        name: ttl_costs(durations_s, ttls_s, reload_s=reload_s, context_blocks=context_blocks)
        for name, ttls_s in policies.items()
    }


def _is_rebuilt(duration_s: float, ttl_s: float) -> bool:
    return ttl_s <= 0.0 or duration_s > ttl_s


def _decided(forecasts: Sequence[Forecast]) -> list[Forecast]:
    return [forecast for forecast in forecasts if forecast.row.bound != "upper"]
