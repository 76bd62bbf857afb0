"""The study's rows as Markdown tables and as one picture: calibration, AUC and PIT by split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentkv.evals.tables import cell, markdown_table

from .replay import SPLITS
from .scores import THRESHOLDS_S

MIN_POINT_ROWS = 5
"""Calibration points of fewer rows are noise and are left out of the picture."""
LEGEND = """
`AUC > t` is the probability that a command that ran longer than t is ranked above one that did not;
in brackets the 95% bootstrap interval over sessions. `ln err` is the median of |ln p50 -
ln duration|, `log loss` that of the bin the duration fell into, `ECE > 5 s` the mean distance of
predicted from observed P(> 5 s), `regret s` the seconds of one context's memory per turn above
the oracle's. Times are medians: online the command was analysed before, frozen it mostly was not.
"""
COLUMNS = {
    **{f"AUC > {t:g} s": f"auc_{t:g}" for t in THRESHOLDS_S},
    "ln err": "median_abs_log_error",
    "log loss": "log_loss",
    "ECE > 5 s": "calibration_error",
    "regret s": "regret_s_per_turn",
    "predict us": "predict_us",
}

Row = dict[str, Any]


def markdown(rows: Sequence[Row]) -> str:
    """Return a table of scores for each split and mode, a predictor a line."""
    parts = []
    for (split, mode), of_split in grouped(rows).items():
        lines = [
            [row["kind"], *(_shown(row, name) for name in COLUMNS.values())] for row in of_split
        ]
        regrets = of_split[0]["baseline_regrets"].items()
        named = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in regrets)
        parts += [f"## {split}, {mode}", f"{SPLITS[split]}."]
        parts += [markdown_table(["predictor", *COLUMNS], lines), f"Without a predictor: {named}."]
    return "\n\n".join(parts)


def grouped(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Return rows by split and mode, in order."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["split"], row["mode"]), []).append(row)
    return groups


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write the picture as PNG; each split in the mode of use, online where it has one."""
    from matplotlib.figure import Figure

    groups = grouped(rows)
    shown = {k: v for k, v in groups.items() if k[1] == "online" or (k[0], "online") not in groups}
    figure = Figure(figsize=(15, 4.2 * len(shown)), layout="constrained")
    axes = figure.subplots(len(shown), 3, squeeze=False)
    for ((split, mode), of_split), (left, middle, right) in zip(shown.items(), axes, strict=True):
        left.plot([0, 1], [0, 1], color="#cccccc", linewidth=1)
        width = 0.8 / len(of_split)
        for index, row in enumerate(of_split):
            look = {"color": f"C{index}", "linewidth": 2.0 if row["kind"] == "default" else 1.0}
            points = [line for line in row["calibration"] if line["n"] >= MIN_POINT_ROWS]
            places = [[line[name] for line in points] for name in ("predicted", "observed")]
            left.plot(*places, marker="o", markersize=3, label=row["kind"], **look)
            for place, threshold_s in enumerate(THRESHOLDS_S):
                name = f"auc_{threshold_s:g}"
                x = place + (index - (len(of_split) - 1) / 2) * width
                middle.bar(x, row[name] or 0.0, width, color=look["color"])
                if interval := row["interval_95"][name]:
                    middle.plot([x, x], interval, color="black", linewidth=0.8)
            shares = row["pit_shares"]
            tenths = [(place + 0.5) / len(shares) for place in range(len(shares))]
            right.step(tenths, shares, where="mid", **look)
        title = f"{split} split, {mode}"
        left.set(title=f"{title}: calibration", xlabel="predicted P(> 5 s)", ylabel="observed")
        middle.set_xticks(range(len(THRESHOLDS_S)), [f"> {t:g} s" for t in THRESHOLDS_S])
        middle.set(title=f"{title}: AUC, 95% over sessions", ylim=(0.4, 1.0))
        right.set(title=f"{title}: PIT", xlabel="forecast CDF at the duration", ylabel="share")
    axes[0][0].legend(fontsize=8, loc="upper left")
    figure.savefig(path, dpi=110)


def _shown(row: Row, name: str) -> str:
    interval = row["interval_95"].get(name)
    shown = cell(row[name], ".3f")
    return f"{shown} [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else shown
