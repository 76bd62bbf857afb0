"""What a study's rows come to: the document behind tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .regimes import (
    PRESSURED_SHARE,
    RATIO_KEYS,
    RELEASED,
    STOCK,
    VALUE_KEYS,
    Regime,
    Row,
    over_regimes,
    regimes_of,
)
from .targets import is_subject, targets

BASELINES = (STOCK, RELEASED)


def findings(rows: Sequence[Row]) -> dict[str, Any]:
    """All there is to say, from the rows alone."""
    regimes = regimes_of(rows)
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    failed = [row for row in rows if row["error"] is not None]
    played = [row for row in rows if row["error"] is None]
    cpu_s = sum(row["cpu_s"] for row in played)
    return {
        "config": rows[0]["config"] if rows else {},
        "policies": policies,
        "seeds": sorted({row["seed"] for row in rows}),
        "commits": sorted({str(row["commit"]) for row in rows}),
        "codes": sorted({row["code"] for row in rows}),
        "units": len(rows),
        "failed_units": [_failure(row) for row in failed],
        "jobs_per_cpu_s": sum(row["jobs"] for row in played) / cpu_s if cpu_s else None,
        "one_x": _one_x(rows),
        "pressured_share": PRESSURED_SHARE,
        "targets": {
            policy: [target.as_dict() for target in targets(regimes, policy)]
            for policy in policies
            if is_subject(policy)
        },
        "geometric_means": [
            entry for to in BASELINES for entry in _geometric_means(regimes, policies, to)
        ],
        "regimes": [_regime_entry(regime, policies) for regime in regimes],
    }


def _failure(row: Row) -> dict[str, Any]:
    names = ("tools", "pool_blocks", "load", "seed", "policy", "error")
    return {name: row[name] for name in names}


def _one_x(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rates that multiples are of, with what bounds them."""
    found = {(row["tools"], row["pool_blocks"]): row["one_x"] for row in rows}
    return [
        {"tools": tools, "pool_blocks": pool_blocks, **found[tools, pool_blocks]}
        for tools, pool_blocks in sorted(found)
    ]


def _geometric_means(
    regimes: Sequence[Regime], policies: Sequence[str], to: str
) -> list[dict[str, Any]]:
    entries = []
    for tools in dict.fromkeys(regime.tools for regime in regimes):
        pressured = [regime for regime in regimes if regime.tools == tools and regime.is_pressured]
        for policy in policies:
            means = {key: over_regimes(pressured, policy, key, to=to) for key in RATIO_KEYS}
            num = max(count for _, count in means.values())
            if num:
                ratios = {key: mean for key, (mean, _) in means.items()}
                entries.append({"to": to, "tools": tools, "policy": policy, "n": num, **ratios})
    return entries


def _regime_entry(regime: Regime, policies: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for policy in policies:
        if policy not in regime.rows:
            continue
        values = {key: regime.value(policy, key) for key in VALUE_KEYS}
        ratios = {key: regime.ratio(policy, key) for key in RATIO_KEYS}
        found[policy] = {
            "values": {key: value and value.as_dict() for key, value in values.items()},
            "ratios": {key: ratio and ratio.as_dict() for key, ratio in ratios.items()},
        }
    return {
        "tools": regime.tools,
        "pool_blocks": regime.pool_blocks,
        "load": regime.load,
        "load_label": regime.load_label,
        "jps": regime.jps,
        "recomputed_share": regime.recomputed_share,
        "is_pressured": regime.is_pressured,
        "policies": found,
    }
