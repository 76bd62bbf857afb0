"""Ratios between policies from the rows of a study, regime by regime.

A ratio is taken seed by seed against another policy with the same jobs, then as geometric mean over
seeds. Geometric means over regimes are of the pressured ones, which all weigh the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from scipy.stats import gmean

STOCK, RELEASED = "fcfs", "continuum:released"
PRESSURED_SHARE = 0.2
"""A regime is pressured if stock had computed more than this share of its tokens before. In a gap:
of the 42 default regimes (swebench-mini, seed 0) 13 had at most 6.3%, where not even an infinite
pool saved 1% (three tried), and 29 had 76% or more."""
RATIO_KEYS = [
    *("mean_s", "p50_s", "p90_s", "p99_s", "max_s", "slowdown_p99", "slowdown_max"),
    *("ttft_first_p99_s", "ttft_first_max_s"),
    *("ttft_continuing_p99_s", "ttft_continuing_max_s", "tokens_per_s"),
]
_NEEDED = ("tools", "pool_blocks", "load", "seed", "policy", "counters", "cpu_s", "jobs")
REGIME = ["tools", "pool_blocks", "load"]


class Findings:
    """The rows of a study as tables. Rows of failed units do not count."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self.rows = rows
        played = [row for row in rows if row["error"] is None]
        frame = pd.DataFrame(played, columns=None if played else [*_NEEDED])
        counters = frame.pop("counters") if len(frame) else []
        frame["computed_tokens"] = [each.get("computed_tokens") for each in counters]
        kinds = [
            1 if row["concurrency"] else 2 if row["load"].startswith("burst") else 0
            for row in played
        ]
        tools = list(dict.fromkeys(row["tools"] for row in rows))
        frame["place"] = [
            (
                tools.index(row["tools"]),
                row["pool_blocks"],
                kind,
                row["multiple"] or 0.0,
                row["concurrency"] or 0,
            )
            for row, kind in zip(played, kinds, strict=True)
        ]
        numbers = [*RATIO_KEYS, "hit_rate", "preemptions", "recomputed_tokens", "computed_tokens"]
        frame[numbers] = frame.reindex(columns=numbers).apply(pd.to_numeric)
        self.frame = frame.sort_values("place", kind="stable").reset_index(drop=True)
        self.policies = list(dict.fromkeys(row["policy"] for row in rows))
        self.regimes = list(self.frame.groupby(REGIME, sort=False).groups)
        stock = self.frame[self.frame["policy"] == STOCK].groupby(REGIME, sort=False)
        self.recomputed_share = stock["recomputed_tokens"].sum() / stock["computed_tokens"].sum()
        self.pressured = [
            r for r in self.regimes if self.recomputed_share.get(r, 0.0) > PRESSURED_SHARE
        ]

    def ratios(self, to: str = STOCK) -> pd.DataFrame:
        """Ratios to a policy by regime, policy and seed, for each of RATIO_KEYS."""
        index = [*REGIME, "seed"]
        base = self.frame[self.frame["policy"] == to].set_index(index)[RATIO_KEYS]
        own = self.frame.set_index([*REGIME, "policy", "seed"])[RATIO_KEYS]
        base = base.reindex(own.index.droplevel("policy")).set_axis(own.index)
        return own / base.where(base != 0.0)

    def over_seeds(self, to: str = STOCK) -> pd.DataFrame:
        """Geometric means of the ratios over seeds, by regime and policy."""
        return self.ratios(to).groupby(level=[*REGIME, "policy"], sort=False).agg(geometric_mean)

    def geometric_means(self, to: str) -> pd.DataFrame:
        """Ratios over the pressured regimes, by tools and policy, with their number `n`."""
        ratios = self.over_seeds(to)
        ratios = ratios[ratios.index.droplevel("policy").isin(self.pressured)]
        groups = ratios.groupby(level=["tools", "policy"], sort=False)
        found = groups.agg(geometric_mean)
        found.insert(0, "n", groups.count().max(axis=1))
        return found[found["n"] > 0]

    def document(self) -> dict[str, Any]:
        """All but the regimes one by one, which are in the tables."""
        rows = self.rows
        cpu_s = self.frame["cpu_s"].sum() if len(self.frame) else 0.0
        names = ("tools", "pool_blocks", "load", "seed", "policy", "error")
        one_x = {(row["tools"], row["pool_blocks"]): row["one_x"] for row in rows}
        return {
            "config": rows[0]["config"] if rows else {},
            "policies": self.policies,
            "seeds": sorted({row["seed"] for row in rows}),
            "commits": sorted({str(row["commit"]) for row in rows}),
            "units": len(rows),
            "failed_units": [
                {name: row[name] for name in names} for row in rows if row["error"] is not None
            ],
            "jobs_per_cpu_s": float(self.frame["jobs"].sum() / cpu_s) if cpu_s else None,
            "one_x": [
                {"tools": tools, "pool_blocks": pool, **one_x[tools, pool]}
                for tools, pool in sorted(one_x)
            ],
            "pressured_share": PRESSURED_SHARE,
        }


def geometric_mean(values: pd.Series) -> float:
    """Geometric mean of those that are known; NaN without any, 0 if one of them is."""
    known = values.dropna()
    if not len(known) or known.min() <= 0.0:
        return float("nan") if not len(known) else 0.0
    return float(gmean(known))
