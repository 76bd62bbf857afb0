"""What a study's rows say: ratios between policies, regime by regime, and the project's targets.

A ratio is taken seed by seed against another policy with the same jobs, then as geometric mean over
seeds. Geometric means over regimes are of the pressured ones, which all weigh the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from scipy.stats import gmean

from .policies import ANY_ORDER, IN_ORDER

STOCK, RELEASED, PAPER = "fcfs", "continuum:released", "continuum:paper"
UNLIMITED, LOSSLESS = "fcfs@infinite", "agentkv@lossless"
SUBJECT, LIGHT = "agentkv", "light"
PRESSURED_SHARE = 0.2
"""A regime is pressured if stock had computed more than this share of its tokens before. In a gap:
of the 42 default regimes (swebench-mini, seed 0) 13 had at most 6.3%, where not even an infinite
pool saved 1% (three tried), and 29 had 76% or more."""
LIGHT_SHARE = 0.01
"""Distance from stock that counts as the same; also what "never worse" allows for chance."""
RATIO_KEYS = [
    *("mean_s", "p50_s", "p90_s", "p99_s", "max_s", "slowdown_p99", "slowdown_max"),
    *("ttft_first_p99_s", "ttft_first_max_s"),
    *("ttft_continuing_p99_s", "ttft_continuing_max_s", "tokens_per_s"),
]
_NEEDED = ("tools", "pool_blocks", "load", "seed", "policy", "counters", "cpu_s", "jobs")
REGIME = ["tools", "pool_blocks", "load"]
TARGETS: Sequence[tuple[str | None, str, str, str, float | None]] = (
    ("recorded", "mean JCT", "mean_s", STOCK, 0.40),
    ("recorded", "p99 JCT", "p99_s", STOCK, 0.55),
    ("recorded", "mean JCT", "mean_s", RELEASED, 0.92),
    ("recorded", "p99 JCT", "p99_s", RELEASED, 0.97),
    ("longtail", "mean JCT", "mean_s", STOCK, 0.50),
    ("longtail", "p99 JCT", "p99_s", STOCK, 0.70),
    ("longtail", "mean JCT", "mean_s", RELEASED, 0.75),
    ("longtail", "p99 JCT", "p99_s", RELEASED, 0.85),
    (None, "mean JCT", "mean_s", UNLIMITED, 1.3),
    (None, "max JCT", "max_s", PAPER, 1.0),
    (None, "max JCT", "max_s", RELEASED, 1.0),
    (None, "max slowdown", "slowdown_max", STOCK, 1.0),
    (None, "continuing TTFT p99", "ttft_continuing_p99_s", STOCK, 0.25),
    (None, "continuing TTFT max", "ttft_continuing_max_s", STOCK, 1.0),
    (None, "first-turn TTFT p99", "ttft_first_p99_s", STOCK, None),
    (None, "first-turn TTFT max", "ttft_first_max_s", STOCK, None),
    (None, "mean JCT", "mean_s", IN_ORDER, None),
    (None, "mean JCT", "mean_s", ANY_ORDER, None),
    (None, "p99 JCT", "p99_s", ANY_ORDER, None),
    (None, "max JCT", "max_s", ANY_ORDER, None),
    (None, "mean JCT", "mean_s", LOSSLESS, None),
    (None, "p99 JCT", "p99_s", LOSSLESS, None),
    (None, "continuing TTFT p99", "ttft_continuing_p99_s", LOSSLESS, None),
)
"""(tools or None for all, title, figure, policy it is divided by, most allowed or None if only
shown): the project's goals, as geometric means over the pressured regimes."""


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

    def targets(self, policy: str) -> list[dict[str, Any]]:
        """The project's goals for a policy: limit, value (None if not measured), worst regime."""
        found = []
        by_base = {to: self.over_seeds(to) for _, _, _, to, _ in TARGETS}
        for tools in dict.fromkeys(tools for tools, *_ in self.regimes):
            pressured = [regime for regime in self.pressured if regime[0] == tools]
            for only, title, key, to, limit in TARGETS:
                if only in (None, tools):
                    ratios = _of(by_base[to], policy, pressured)[key]
                    if limit is not None or ratios.notna().any():
                        mean = geometric_mean(ratios)
                        found.append(
                            _target(f"{tools} tools: {title} over {to}", limit, mean, ratios)
                        )
        over_stock = by_base[STOCK]
        light = _of(over_stock, policy, [r for r in self.regimes if r[2] == LIGHT])
        distance = (light - 1.0).abs().max(axis=1)
        name = "light load: largest distance of any figure from stock"
        found.append(_target(name, LIGHT_SHARE, distance.max(), distance))
        more = self._preemptions(policy) - self._preemptions(STOCK)
        more = more[more.index.get_level_values("load") == LIGHT]
        found.append(_target("light load: preemptions beyond stock's", 0.0, more.max(), more))
        smallest = min((pool for _, pool, _ in self.regimes), default=0)
        small = [regime for regime in self.regimes if regime[1] == smallest]
        both = [_of(by_base[to], policy, small)["mean_s"] for to in (STOCK, RELEASED)]
        worse = pd.concat(both, axis=1).max(axis=1, skipna=False)
        name = f"{smallest:,} blocks: mean JCT over the better of {STOCK} and {RELEASED}"
        found.append(_target(name, 1.0 + LIGHT_SHARE, worse.max(), worse))
        calm = [regime for regime in self.regimes if regime not in self.pressured]
        means = _of(over_stock, policy, calm)["mean_s"]
        name = f"no pressure: mean JCT over {STOCK}, worst regime"
        return [*found, _target(name, None, means.max(), means)]

    def _preemptions(self, policy: str) -> Any:
        own = self.frame[self.frame["policy"] == policy]
        return own.set_index([*REGIME, "seed"])["preemptions"]

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
            "codes": sorted({row["code"] for row in rows}),
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
            "targets": {
                policy: self.targets(policy) for policy in self.policies if is_subject(policy)
            },
        }


def is_subject(policy: str) -> bool:
    """True for the policy that has targets: ours, with any settings, on the real pool."""
    return policy.startswith(SUBJECT) and "@" not in policy


def geometric_mean(values: pd.Series) -> float:
    """Geometric mean of those that are known; NaN without any, 0 if one of them is."""
    known = values.dropna()
    if not len(known) or known.min() <= 0.0:
        return float("nan") if not len(known) else 0.0
    return float(gmean(known))


def _of(ratios: pd.DataFrame, policy: str, regimes: Sequence[Any]) -> pd.DataFrame:
    """A policy's rows in these regimes."""
    own = ratios[ratios.index.get_level_values("policy") == policy].droplevel("policy")
    return own[own.index.isin(regimes)]


def _target(name: str, limit: float | None, value: float, by_place: pd.Series) -> dict[str, Any]:
    known = by_place.dropna()
    if not len(known):
        return {"name": name, "limit": limit, "value": None, "n": 0, "worst": "", "is_met": None}
    tools, pool, load, *seed = known.idxmax()
    place = f"{tools}, {pool:,} blocks, {load}" + "".join(f", seed {each}" for each in seed)
    return {
        "name": name,
        "limit": limit,
        "value": float(value),
        "n": len(known),
        "worst": f"{known.max():.3f} at {place}",
        "is_met": None if limit is None else bool(value <= limit),
    }
