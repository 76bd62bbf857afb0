"""Replays traces through predictors: one forecast a judged command, as a pandas row.

A split gives folds of rows to learn from and rows to judge, none drawn at random by row: neighbours
in time resemble each other too much. A predictor sees a row only as its fold allows. Called by the
study's command; knows nothing of scores.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import compress
from typing import Any, Literal, NamedTuple, Protocol

from agentkv.commands import analyze_command, forget_analyses
from agentkv.durations import Prediction
from agentkv.durations.ttl import ContinuumTTL
from agentkv.evals.workload.traces import Trace, TracedCommand

UpperBounds = Literal["impute", "skip", "bound"]
Rows = Sequence[TracedCommand]

EDGES_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0)
"""Where each forecast's distribution is read; they bound the bins of the log loss."""
RELOAD_S = 7.4
"""Cost of a lost cache, queueing and prefill: makes a TTL of 2 s the best for Exp(1) durations."""
SESSION_FOLDS = 5
MIN_FAMILY_ROWS = 30


class Predictor(Protocol):
    """A predictor under judgement: `DurationPredictor`, or a baseline of this study."""

    def predict(self, command: str) -> Prediction: ...
    def observe(self, command: str, duration_s: float, *, censored: bool = False) -> None: ...


class Fold(NamedTuple):
    """Rows to learn from and rows to judge, disjoint, each in time order."""

    name: str
    train: Rows
    test: Rows


@dataclass(frozen=True, slots=True)
class Split:
    """The folds of one way to split; `is_online`: also judged while every judged row is learned."""

    name: str
    what: str
    folds: Sequence[Fold]
    is_online: bool = True


def time_split(traces: Sequence[Trace], train_share: float) -> Split:
    """Learn the first part of each trace, judge the rest."""
    train: list[TracedCommand] = []
    test: list[TracedCommand] = []
    for trace in traces:
        num_train = round(len(trace.rows) * train_share)
        train += trace.rows[:num_train]
        test += trace.rows[num_train:]
    what = f"the first {train_share:.0%} of each trace by time is learned, the rest judged"
    return Split("time", what, [Fold("time", train, test)] if train and test else [])


def session_split(traces: Sequence[Trace], seed: int) -> Split:
    """Leave sessions out, SESSION_FOLDS groups of them in turn: every group costs a training."""
    rows = _all_rows(traces)
    sessions = list(dict.fromkeys((row.trace, row.session) for row in rows))
    random.Random(seed).shuffle(sessions)
    num_folds = min(SESSION_FOLDS, len(sessions)) if len(sessions) > 1 else 0
    groups = [set(sessions[index::num_folds]) for index in range(num_folds)]
    folds = [
        _fold(f"sessions {number}/{num_folds}", rows, [(r.trace, r.session) in group for r in rows])
        for number, group in enumerate(groups, start=1)
    ]
    what = f"{len(sessions)} sessions left out in {num_folds} groups, one group at a time"
    return Split("session", what, folds)


def tool_split(traces: Sequence[Trace]) -> Split:
    """Leave out each program with MIN_FAMILY_ROWS rows, with every command that runs it.

    Frozen only: one run of a program would give it away.
    """
    rows = _all_rows(traces)
    names = {row.command: {p.name for p in analyze_command(row.command).programs} for row in rows}
    counts = Counter(name for row in rows for name in names[row.command])
    folds = [
        _fold(family, rows, [family in names[row.command] for row in rows])
        for family, num_rows in counts.most_common()
        if MIN_FAMILY_ROWS <= num_rows < len(rows)
    ]
    what = (
        f"each of {len(folds)} programs with {MIN_FAMILY_ROWS} rows or more is left out with every "
        "command that runs it; a command that runs two of them is judged twice"
    )
    return Split("tool", what, folds, is_online=False)


def trace_split(traces: Sequence[Trace]) -> Split:
    """Leave out one trace at a time: another project. No folds of a single trace."""
    rows = _all_rows(traces)
    folds = [_fold(trace.name, rows, [row.trace == trace.name for row in rows]) for trace in traces]
    what = "each trace is judged after learning from the others"
    return Split("trace", what, folds if len(traces) > 1 else [])


def cold_split(traces: Sequence[Trace]) -> Split:
    """Learn nothing beforehand; meant for models trained on other traces."""
    return Split("cold", "nothing is learned beforehand", [Fold("cold", (), _all_rows(traces))])


def _all_rows(traces: Sequence[Trace]) -> Rows:
    return [row for trace in traces for row in trace.rows]


def _fold(name: str, rows: Rows, is_judged: Sequence[bool]) -> Fold:
    is_learned = [not judged for judged in is_judged]
    return Fold(name, list(compress(rows, is_learned)), list(compress(rows, is_judged)))


class Learner:
    """A predictor and Continuum's TTL, which learn from the same rows.

    A row with an upper bound (at most 3 s) has no place in `observe`, whose `censored` is a lower
    bound: `bound` observes the bound itself, `skip` nothing, `impute` the median of the learned
    measured durations under that bound.
    """

    def __init__(self, predictor: Predictor, upper_bounds: UpperBounds, train: Rows) -> None:
        self._predictor = predictor
        self._upper_bounds = upper_bounds
        self._imputed_s = typical_short_s(train)
        self._continuum = ContinuumTTL()
        for row in train:
            self.observe(row)

    def observe(self, row: TracedCommand) -> float | None:
        """Learn one row; returns the predictor's microseconds, None if the row is skipped."""
        if row.bound == "upper" and self._upper_bounds == "skip":
            return None
        duration_s = row.duration_s
        if row.bound == "upper" and self._upper_bounds == "impute":
            duration_s = min(duration_s, self._imputed_s)
        start_ns = time.perf_counter_ns()
        self._predictor.observe(row.command, duration_s, censored=row.bound == "lower")
        took_us = (time.perf_counter_ns() - start_ns) / 1e3
        self._continuum.durations.observe(_first_program(row.command), duration_s)
        return took_us

    def forecast(self, row: TracedCommand) -> dict[str, Any]:
        """The forecast for a row before its duration is known; learns nothing.

        `over_<edge>` are probabilities, `share_below` the forecast's distribution function at the
        duration itself, `effective_ttl_s` the TTL of a policy that takes Continuum's if uncertain.
        """
        start_ns = time.perf_counter_ns()
        prediction = self._predictor.predict(row.command)
        took_us = (time.perf_counter_ns() - start_ns) / 1e3
        continuum_ttl_s = self._continuum.ttl(_first_program(row.command), RELOAD_S).seconds
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


def replay(
    split: Split, fold: Fold, predictors: dict[str, Predictor], upper_bounds: UpperBounds = "bound"
) -> Iterator[dict[str, Any]]:
    """The forecasts of one fold: frozen (nothing is learned while judged), then online.

    Frozen comes first, so that both start from the same state.
    """
    for kind, predictor in predictors.items():
        # each pays for reading the commands itself, or the first would pay for all
        forget_analyses()
        learner = Learner(predictor, upper_bounds, fold.train)
        names = {"split": split.name, "kind": kind, "fold": fold.name}
        for row in fold.test:
            yield {**names, "mode": "frozen", **learner.forecast(row), "observe_us": None}
        for row in fold.test if split.is_online else ():
            forecast = learner.forecast(row)
            yield {**names, "mode": "online", **forecast, "observe_us": learner.observe(row)}


def typical_short_s(rows: Rows) -> float:
    """The median measured duration no longer than the rows' upper bounds; 1 s without any."""
    longest_s = max((row.duration_s for row in rows if row.bound == "upper"), default=3.0)
    measured_s = [r.duration_s for r in rows if r.bound == "exact" and r.duration_s <= longest_s]
    return statistics.median(measured_s) if measured_s else 1.0


def _first_program(command: str) -> str | None:
    """The tool name by which Continuum knows a command; None if nothing runs."""
    programs = analyze_command(command).programs
    return programs[0].name if programs else None
