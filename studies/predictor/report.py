"""The study's rows as a Markdown report and as one picture: calibration, AUC and PIT by split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from agentkv.evals.tables import markdown_table

from .scores import SPEEDS, THRESHOLDS_S

MIN_POINT_ROWS = 5
"""Calibration points of fewer rows are noise and are left out of the picture."""
LEGEND = """\
- `AUC > t`: P(a command that ran longer than t is ranked above one that did not), by the predicted
  probability; in brackets the 95% bootstrap interval over sessions. Commands known to have taken
  at most 3 s count as negatives above 5 and 10 s and are left out below.
- `ln err`: median of |ln p50 - ln duration|; `log loss`: of the bin the duration fell into;
  `ECE > 5 s`: mean distance of predicted from observed P(> 5 s).
- `regret s`: seconds of one context's memory per turn above the oracle's.
- `predict us`: median; online the command was analysed before, frozen it mostly was not."""


def markdown(document: dict[str, Any]) -> str:
    """The whole report: what was run, then the tables of each split and mode, then a legend."""
    parts = ["# Duration predictors, side by side", ""]
    for trace in document["traces"]:
        parts.append(
            f"- `{trace['name']}`: {trace['rows']} commands, {trace['upper']} of them known to "
            f"have taken at most 3 s, {trace['lower']} timed out; {trace['skipped']} lines skipped"
        )
    origin = [document[name] for name in ("commit", "seed", "config")]
    parts.append("- commit {}, seed {}, {}".format(*origin))
    for (split, mode), rows in grouped(document["rows"]).items():
        parts += ["", f"## {split}, {mode}", "", f"{document['splits'][split]}.", ""]
        parts.append(score_table(rows))
        if split == "tool":
            aucs = {row["kind"]: _auc_by_fold(row) for row in rows}
            table = _table(pd.DataFrame(aucs).rename_axis("program").reset_index())
            parts += ["", "AUC > 5 s by program left out:", "", table]
        regrets = rows[0]["baseline_regrets"]
        named = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in regrets.items())
        confusions = pd.DataFrame([_confusion(row) for row in rows])
        parts += ["", f"Regret without a predictor: {named}.", ""]
        parts += ["Rows by true speed, as predicted fast / uncertain / slow:", ""]
        parts.append(_table(confusions))
    return "\n".join([*parts, "", "## Legend", "", LEGEND, ""])


def grouped(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Rows by split and mode, in order."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["split"], row["mode"]), []).append(row)
    return groups


def score_table(rows: Sequence[dict[str, Any]]) -> str:
    """The scores of one split and mode, a predictor a line."""
    with_interval = {f"AUC > {t:g} s": f"auc_{t:g}" for t in THRESHOLDS_S}
    with_interval["ln err"] = "median_abs_log_error"
    plain = {
        "log loss": "log_loss",
        "ECE > 5 s": "calibration_error",
        "regret s": "regret_s_per_turn",
        "predict us": "predict_us",
    }
    lines = [
        {
            "predictor": row["kind"],
            **{head: _shown(row[k], row["interval_95"][k]) for head, k in with_interval.items()},
            **{head: row[name] for head, name in plain.items()},
        }
        for row in rows
    ]
    return _table(pd.DataFrame(lines))


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
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
            predicted = [line["predicted"] for line in points]
            observed = [line["observed"] for line in points]
            left.plot(predicted, observed, marker="o", markersize=3, label=row["kind"], **look)
            for place, threshold_s in enumerate(THRESHOLDS_S):
                name = f"auc_{threshold_s:g}"
                x = place + (index - (len(of_split) - 1) / 2) * width
                middle.bar(x, row[name] or 0.0, width, color=look["color"])
                if interval := row["interval_95"][name]:
                    middle.plot([x, x], interval, color="black", linewidth=0.8)
            shares = row["pit_shares"]
            places = [(place + 0.5) / len(shares) for place in range(len(shares))]
            right.step(places, shares, where="mid", **look)
        title = f"{split} split, {mode}"
        left.set(title=f"{title}: calibration", xlabel="predicted P(> 5 s)", ylabel="observed")
        middle.set_xticks(range(len(THRESHOLDS_S)), [f"> {t:g} s" for t in THRESHOLDS_S])
        middle.set(title=f"{title}: AUC, 95% over sessions", ylim=(0.4, 1.0))
        right.set(title=f"{title}: PIT", xlabel="forecast CDF at the duration", ylabel="share")
    axes[0][0].legend(fontsize=8, loc="upper left")
    figure.savefig(path, dpi=110)


def _shown(value: float | None, interval: Sequence[float] | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "")


def _table(frame: pd.DataFrame) -> str:
    cells = frame.map(lambda value: value if isinstance(value, str) else f"{value:.3f}")
    return markdown_table(list(frame.columns), cells.to_numpy())


def _auc_by_fold(row: dict[str, Any]) -> dict[str, float]:
    return {name: fold["auc_5"] or math.nan for name, fold in row["folds"].items()}


def _confusion(row: dict[str, Any]) -> dict[str, str]:
    cells = {true: " / ".join(map(str, row["confusion"][true].values())) for true in SPEEDS}
    return {"predictor": row["kind"], **cells}
