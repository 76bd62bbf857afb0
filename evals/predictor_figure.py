"""The predictors' rows as one picture: per split, calibration, AUC and the PIT."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .predictor_replay import THRESHOLDS_S
from .predictor_tables import Row, grouped

_COLORS = ("#0b62a4", "#d95f02", "#7a7a7a", "#1b9e77", "#a6761d", "#7570b3", "#e7298a")
_MIN_ROWS = 5
"""Calibration points of fewer rows are noise and left out of the plot; the table has them."""


def draw(document: dict[str, Any], path: Path) -> None:
    """Write the figure as PNG; each split in the mode of use, online where it has one."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = dict(_shown(document["rows"]))
    figure = Figure(figsize=(15, 4.2 * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(shown), 3, squeeze=False)
    for (title, rows), (calibration, auc, pit) in zip(shown.items(), axes, strict=True):
        _draw_calibration(calibration, rows, title)
        _draw_auc(auc, rows, title)
        _draw_pit(pit, rows, title)
    axes[0][0].legend(fontsize=8, loc="upper left")
    figure.savefig(path, dpi=110)


def _shown(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    groups = grouped(rows)
    return [
        (f"{split} split, {mode}", its_rows)
        for (split, mode), its_rows in groups.items()
        if mode == "online" or (split, "online") not in groups
    ]


def _draw_calibration(axes: Any, rows: Sequence[Row], title: str) -> None:
    axes.plot([0, 1], [0, 1], color="#cccccc", linewidth=1)
    for row, color in zip(rows, _cycle(rows), strict=True):
        points = [line for line in row["calibration_over_5_s"] if line["n"] >= _MIN_ROWS]
        axes.plot(
            [line["predicted"] for line in points],
            [line["observed"] for line in points],
            marker="o",
            markersize=3,
            color=color,
            label=row["kind"],
            linewidth=2.0 if row["kind"] == "default" else 1.0,
        )
    axes.set(title=f"{title}: calibration", xlabel="predicted P(> 5 s)", ylabel="observed share")
    axes.set(xlim=(0, 1), ylim=(0, 1))


def _draw_auc(axes: Any, rows: Sequence[Row], title: str) -> None:
    width = 0.8 / len(rows)
    for index, (row, color) in enumerate(zip(rows, _cycle(rows), strict=True)):
        for place, threshold_s in enumerate(THRESHOLDS_S):
            value = row["auc"][f"{threshold_s:g}"]
            spread = row["interval_95"][f"auc_{threshold_s:g}"]
            if value is None:
                continue
            x = place + (index - (len(rows) - 1) / 2) * width
            axes.bar(x, value, width, color=color)
            if spread is not None:
                axes.plot([x, x], spread, color="black", linewidth=0.8)
    axes.set_xticks(range(len(THRESHOLDS_S)), [f"> {t:g} s" for t in THRESHOLDS_S])
    axes.set(title=f"{title}: AUC, 95% over sessions", ylim=(0.4, 1.0))


def _draw_pit(axes: Any, rows: Sequence[Row], title: str) -> None:
    num_bins = len(rows[0]["pit_shares"])
    places = [(index + 0.5) / num_bins for index in range(num_bins)]
    axes.axhline(1 / num_bins, color="#cccccc", linewidth=1)
    for row, color in zip(rows, _cycle(rows), strict=True):
        width = 2.0 if row["kind"] == "default" else 1.0
        axes.step(places, row["pit_shares"], where="mid", color=color, linewidth=width)
    axes.set(title=f"{title}: PIT", xlabel="forecast CDF at the duration", ylabel="share of rows")
    axes.set(xlim=(0, 1), ylim=(0, None))


def _cycle(rows: Sequence[Row]) -> list[str]:
    return [_COLORS[index % len(_COLORS)] for index in range(len(rows))]
