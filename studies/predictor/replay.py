"""Replays traces through predictors: one forecast for each judged command, as a dict.

A split gives folds of rows to learn from and rows to judge, none drawn at random by row: neighbours
in time resemble each other too much. Knows nothing of scores.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import compress
from typing import Any, NamedTuple, Protocol

from agentkv.commands import analyze_command, forget_analyses
from agentkv.durations import Prediction
from agentkv.durations.ttl import ContinuumTTL
from agentkv.evals.workload.traces import Trace, TracedCommand

Rows = Sequence[TracedCommand]

EDGES_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0)
"""Where each forecast's distribution is read; they bound the bins of the log loss."""
RELOAD_S = 7.4
"""Cost of a lost cache, queueing and prefill: makes a TTL of 2 s the best for Exp(1) durations."""
TRAIN_SHARE = 0.7
SESSION_FOLDS = 5
MIN_FAMILY_ROWS = 30
SPLITS = {
    "time": f"the first {TRAIN_SHARE:.0%} of each trace by time is learned, the rest judged",
    "session": f"sessions are left out in {SESSION_FOLDS} groups, one group at a time",
    "tool": f"each program with {MIN_FAMILY_ROWS} rows or more is left out with every command that "
    "runs it; a command that runs two of them is judged twice",
    "trace": "each trace is judged after learning from the others",
    "cold": "nothing is learned beforehand",
}


class Predictor(Protocol):
    """A predictor under judgement: `DurationPredictor`, or a baseline of this study."""

    def predict(self, command: str) -> Prediction: ...
    def observe(self, command: str, duration_s: float, *, censored: bool = False) -> None: ...


class Fold(NamedTuple):
    """Rows to learn from and rows to judge, disjoint, each in time order."""

    split: str
    name: str
    train: Rows
    test: Rows


def folds_of(split: str, traces: Sequence[Trace], seed: int) -> list[Fold]:
    """Return the folds of one of SPLITS; none where the traces are too small for it."""
    rows = [row for trace in traces for row in trace.rows]
    if split == "time":
        learned = {id(row) for trace in traces for row in time_part(trace)}
        groups = [("time", [id(row) not in learned for row in rows])]
    elif split == "session":
        sessions = list(dict.fromkeys((row.trace, row.session) for row in rows))
        random.Random(seed).shuffle(sessions)
        parts = [set(sessions[index::SESSION_FOLDS]) for index in range(SESSION_FOLDS)]
        groups = [
            (f"sessions {number}", [(row.trace, row.session) in part for row in rows])
            for number, part in enumerate(parts, start=1)
        ]
    elif split == "tool":
        names = [{p.name for p in analyze_command(row.command).programs} for row in rows]
        counts = Counter(name for of_row in names for name in of_row)
        groups = [
            (family, [family in of_row for of_row in names])
            for family, num_rows in counts.most_common()
            if num_rows >= MIN_FAMILY_ROWS
        ]
    elif split == "trace":
        groups = [(trace.name, [row.trace == trace.name for row in rows]) for trace in traces]
    else:
        return [Fold(split, split, (), rows)]
    return [
        Fold(split, name, list(compress(rows, [not each for each in judged])), test)
        for name, judged in groups
        if (test := list(compress(rows, judged))) and not all(judged)
    ]


def time_part(trace: Trace) -> Rows:
    """Return the first TRAIN_SHARE of a trace by time."""
    return trace.rows[: round(len(trace.rows) * TRAIN_SHARE)]


def replay(fold: Fold, predictors: Mapping[str, Predictor]) -> Iterator[dict[str, Any]]:
    """Yield the forecasts of one fold: frozen (nothing is learned while judging), then online.

    A row with an upper bound (at most 3 s) is observed as that bound, since `censored` of `observe`
    is a lower bound. The split by tool is frozen only: one run of a program would give it away.
    """
    for kind, predictor in predictors.items():
        # each pays for reading the commands itself, or the first would pay for all
        forget_analyses()
        continuum = ContinuumTTL()
        names = {"split": fold.split, "kind": kind, "fold": fold.name}
        for row in fold.train:
            _observe(row, predictor, continuum)
        for row in fold.test:
            yield {**names, "mode": "frozen", **_forecast(row, predictor, continuum)}
        for row in fold.test if fold.split != "tool" else ():
            yield {**names, "mode": "online", **_forecast(row, predictor, continuum)}
            _observe(row, predictor, continuum)


def _observe(row: TracedCommand, predictor: Predictor, continuum: ContinuumTTL) -> None:
    predictor.observe(row.command, row.duration_s, censored=row.bound == "lower")
    continuum.durations.observe(_first_program(row), row.duration_s)


def _forecast(row: TracedCommand, predictor: Predictor, continuum: ContinuumTTL) -> dict[str, Any]:
    """Forecast a row before its duration is known.

    `over_<edge>` are probabilities, `share_below` the forecast's distribution function at the
    duration itself, `effective_ttl_s` the TTL of a policy that takes Continuum's if uncertain.
    """
    start_ns = time.perf_counter_ns()
    prediction = predictor.predict(row.command)
    took_us = (time.perf_counter_ns() - start_ns) / 1e3
    continuum_ttl_s = continuum.ttl(_first_program(row), RELOAD_S).seconds
    ttls_s = {"fast": prediction.ttl_s, "slow": 0.0, "uncertain": continuum_ttl_s}
    return {
        **asdict(row),
        "speed": prediction.speed,
        "source": prediction.source,
        "p50_s": prediction.p50_s,
        **{f"over_{edge_s:g}": prediction.p_over(edge_s) for edge_s in EDGES_S},
        "share_below": 1.0 - prediction.p_over(row.duration_s),
        "effective_ttl_s": ttls_s[prediction.speed],
        "continuum_ttl_s": continuum_ttl_s,
        "predict_us": took_us,
    }


def _first_program(row: TracedCommand) -> str | None:
    """Return the tool name by which Continuum knows a command; None if nothing runs."""
    programs = analyze_command(row.command).programs
    return programs[0].name if programs else None
