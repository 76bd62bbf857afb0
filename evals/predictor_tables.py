"""The predictors' rows as Markdown: one table per split and mode, every predictor side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .predictor_replay import THRESHOLDS_S

Row = dict[str, Any]

LEGEND = """\
- `AUC > t`: P(a command that ran longer than t is ranked above one that did not), by the predicted
  probability; in brackets the 95% bootstrap interval over sessions. Commands known to have taken
  at most 3 s count as negatives above 5 and 10 s and are left out below.
- `|ln err|`: median of |ln p50 - ln duration|; `log loss`: of the bin the duration fell into;
  `ECE > 5 s`: mean distance of predicted from observed P(> 5 s). Measured commands only.
- `regret`: seconds of one context's memory per turn above the oracle's; `in vain`: block-seconds
  held for tools that outlasted their TTL; `rebuilds`: turns whose cache was gone.
- Times in microseconds, median / p99. Online, the command was analysed before (memo);
  frozen shows the cost of a fresh command where the same was not seen before."""


def markdown(document: dict[str, Any]) -> str:
    """The whole report: what was run, then the tables of each split and mode, then a legend."""
    parts = ["# Duration predictors, side by side", "", *_heading(document)]
    for (split, mode), rows in grouped(document["rows"]).items():
        parts += ["", f"## {split}, {mode}", "", f"{document['splits'][split]}.", ""]
        parts += _table(list(_scores(rows)))
        if rows[0]["macro"]:
            parts += ["", f"Mean over the {len(rows[0]['folds'])} parts:", ""]
            parts += _table(list(_macro(rows)))
        if split == "tool":
            parts += ["", "AUC > 5 s by program left out:", "", *_table(list(_families(rows)))]
        parts += ["", "What the TTLs cost:", "", *_table(list(_costs(rows)))]
        parts += ["", "Rows by true speed, as fast / uncertain / slow:", ""]
        parts += _table(list(_confusion(rows)))
        parts += ["", "P(> 5 s), predicted -> observed (rows):", "", *_table(list(_bins(rows)))]
    return "\n".join([*parts, "", "## Legend", "", LEGEND, ""])


def grouped(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows by split and mode, in order."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["split"], row["mode"]), []).append(row)
    return groups


def score_lines(rows: Sequence[Row]) -> list[str]:
    """The score table of one split and mode, as it is in the report."""
    return _table(list(_scores(rows)))


def _heading(document: dict[str, Any]) -> Iterator[str]:
    for trace in document["traces"]:
        yield (
            f"- `{trace['name']}`: {trace['rows']} commands, of them {trace['upper']} known to "
            f"have taken at most 3 s, {trace['lower']} timed out; {trace['skipped']} lines skipped"
        )
    config = ", ".join(
        f"{name} {'+'.join(value) if isinstance(value, tuple) else value}"
        for name, value in document["config"].items()
    )
    yield f"- commit {document['commit']}, seed {document['seed']}; {config}"


def _scores(rows: Sequence[Row]) -> Iterator[list[str]]:
    thresholds = [f"{threshold_s:g}" for threshold_s in THRESHOLDS_S]
    aucs = [f"AUC > {t} s" for t in thresholds]
    yield ["predictor", *aucs, "ln err", "log loss", "ECE > 5 s", "regret s", "predict", "observe"]
    for row in rows:
        spread = row["interval_95"]
        yield [
            row["kind"],
            *(_with_spread(row["auc"][t], spread[f"auc_{t}"]) for t in thresholds),
            _with_spread(row["median_abs_log_error"], spread["median_abs_log_error"]),
            _number(row["log_loss"]),
            _number(row["calibration_error_over_5_s"]),
            _number(row["ttl"]["regret_s_per_turn"]),
            _times(row["predict_us"]),
            _times(row["observe_us"]),
        ]


def _macro(rows: Sequence[Row]) -> Iterator[list[str]]:
    names = list(rows[0]["macro"])
    yield ["predictor", *(name.replace("_", " ") for name in names)]
    for row in rows:
        yield [row["kind"], *(_number(row["macro"][name]) for name in names)]


def _families(rows: Sequence[Row]) -> Iterator[list[str]]:
    yield ["program", "rows", *(row["kind"] for row in rows)]
    for family, brief in rows[0]["folds"].items():
        scores = [_number(row["folds"][family]["auc_5"]) for row in rows]
        yield [f"`{family}`".replace("|", "\\|"), str(brief["num_test"]), *scores]


def _costs(rows: Sequence[Row]) -> Iterator[list[str]]:
    yield ["TTLs of", "regret s a turn", "block-s held", "block-s in vain", "rebuilds", "turns"]
    for name, costs in rows[0]["ttl_baselines"].items():
        yield _cost_cells(f"({name})", costs)
    for row in rows:
        yield _cost_cells(row["kind"], row["ttl"])


def _cost_cells(name: str, costs: dict[str, Any]) -> list[str]:
    return [
        name,
        _number(costs["regret_s_per_turn"]),
        f"{costs['held_block_s']:.0f}",
        f"{costs['held_in_vain_block_s']:.0f}",
        str(costs["rebuilds"]),
        str(costs["num_turns"]),
    ]


def _confusion(rows: Sequence[Row]) -> Iterator[list[str]]:
    yield ["predictor", *rows[0]["speed_confusion"]]
    for row in rows:
        counts = row["speed_confusion"].values()
        yield [row["kind"], *(" / ".join(str(num) for num in c.values()) for c in counts)]


def _bins(rows: Sequence[Row]) -> Iterator[list[str]]:
    lines = rows[0]["calibration_over_5_s"]
    yield ["predictor", *(f"{line['low']:.1f}-{line['high']:.1f}" for line in lines)]
    for row in rows:
        yield [
            row["kind"],
            *(
                f"{line['predicted']:.2f} -> {line['observed']:.2f} ({line['n']})"
                if line["n"]
                else "-"
                for line in row["calibration_over_5_s"]
            ),
        ]


def _table(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    head, *body = [
        "| " + " | ".join(f"{cell:{w}}" for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    return [head, "|" + "|".join("-" * (width + 2) for width in widths) + "|", *body]


def _with_spread(value: float | None, spread: Sequence[float] | None) -> str:
    if value is None or spread is None:
        return _number(value)
    return f"{value:.3f} [{spread[0]:.2f}, {spread[1]:.2f}]"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _times(times: dict[str, float] | None) -> str:
    return "-" if times is None else f"{times['median']:.0f} / {times['p99']:.0f}"
