"""Which rows are learned and which are judged, and that the two never meet."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agentkv.commands import analyze_command
from agentkv.durations import Prediction
from agentkv.durations.prediction import LogNormal
from agentkv.evals.workload.traces import Trace, TracedCommand, read_trace
from studies.predictor.replay import (
    Fold,
    Split,
    cold_split,
    replay,
    session_split,
    time_split,
    tool_split,
    trace_split,
    typical_short_s,
)
from tests.evals.trace_rows import row, synthetic_lines, write_lines


@dataclass
class MeanByCommand:
    """A predictor that knows each command's mean log duration, and records its calls."""

    observed: list[tuple[str, float, bool]] = field(default_factory=list)
    predicted: list[tuple[str, int]] = field(default_factory=list)

    def observe(self, command: str, duration_s: float, *, censored: bool = False) -> None:
        self.observed.append((command, duration_s, censored))

    def predict(self, command: str) -> Prediction:
        self.predicted.append((command, len(self.observed)))
        logs = [math.log(s) for c, s, _ in self.observed if c == command]
        distribution = LogNormal(statistics.fmean(logs or [0.0]), 1.0)
        return Prediction("uncertain", 1.0, 2.0, 2.0, "mean", "the mean", distribution)


@pytest.fixture
def traces(tmp_path: Path) -> list[Trace]:
    """Two traces of 200 and 100 commands."""
    paths = [
        write_lines(tmp_path / f"{num}.jsonl", synthetic_lines(num, seed=num)) for num in (200, 100)
    ]
    return [read_trace(path) for path in paths]


@pytest.mark.parametrize(
    "make",
    [
        lambda traces: time_split(traces, 0.7),
        lambda traces: session_split(traces, seed=0),
        tool_split,
        trace_split,
        cold_split,
    ],
)
def test_no_row_is_both_learned_and_judged(
    make: Callable[[list[Trace]], Split], traces: list[Trace]
) -> None:
    """Every fold of every split has rows to judge, and none of them is learned."""
    split = make(traces)
    assert split.folds
    for fold in split.folds:
        assert not {id(r) for r in fold.train} & {id(r) for r in fold.test}
        assert fold.test


def test_the_time_split_judges_what_came_later(traces: list[Trace]) -> None:
    """In each trace every learned row is older than every judged one."""
    (fold,) = time_split(traces, 0.7).folds
    assert len(fold.train) == 140 + 70
    for trace in traces:
        latest = max(r.order for r in fold.train if r.trace == trace.name)
        assert latest < min(r.order for r in fold.test if r.trace == trace.name)


def test_the_session_split_judges_every_row_once(traces: list[Trace]) -> None:
    """No session is learned and judged, and the judged groups make up the traces."""
    folds = session_split(traces, seed=0).folds
    judged = [id(r) for fold in folds for r in fold.test]
    assert sorted(judged) == sorted(id(r) for trace in traces for r in trace.rows)
    for fold in folds:
        learned = {(r.trace, r.session) for r in fold.train}
        assert not learned & {(r.trace, r.session) for r in fold.test}


def test_the_tool_split_learns_no_command_with_that_program(traces: list[Trace]) -> None:
    """The program left out does not run in any learned command, and runs in every judged one."""
    split = tool_split(traces)
    assert {"go", "grep", "npm", "ls"} <= {fold.name for fold in split.folds}
    for fold in split.folds:
        for part, is_expected in ((fold.train, False), (fold.test, True)):
            for r in part:
                names = {program.name for program in analyze_command(r.command).programs}
                assert (fold.name in names) is is_expected


def test_one_session_or_trace_cannot_be_left_out(tmp_path: Path) -> None:
    """With one session or one trace nothing would be left to learn, so there are no folds."""
    path = write_lines(tmp_path / "one.jsonl", synthetic_lines(10, num_sessions=1))
    one = [read_trace(path)]
    assert not session_split(one, seed=0).folds
    assert not trace_split(one).folds


def judged(
    train: list[TracedCommand], test: list[TracedCommand], *, is_online: bool = False, **rules: str
) -> MeanByCommand:
    """A predictor after one fold."""
    predictor = MeanByCommand()
    fold = Fold("f", train, test)
    split = Split("s", "what", [fold], is_online=is_online)
    assert len(list(replay(split, fold, {"mean": predictor}, **rules))) == len(test) * (
        1 + is_online
    )  # type: ignore[arg-type]
    return predictor


def test_frozen_judging_teaches_the_predictor_nothing() -> None:
    """Every frozen forecast is made after the learned rows and no others."""
    predictor = judged([row(1.0, "a"), row(2.0, "b")], [row(3.0, "c"), row(4.0, "d")])
    assert predictor.observed == [("a", 1.0, False), ("b", 2.0, False)]
    assert predictor.predicted == [("c", 2), ("d", 2)]


def test_online_judging_teaches_each_row_after_its_forecast() -> None:
    """The online pass starts from the state that the frozen pass left unchanged."""
    predictor = judged([row(1.0, "a")], [row(3.0, "c"), row(4.0, "d")], is_online=True)
    assert predictor.predicted == [("c", 1), ("d", 1), ("c", 1), ("d", 2)]
    assert predictor.observed == [("a", 1.0, False), ("c", 3.0, False), ("d", 4.0, False)]


def test_a_time_out_is_observed_as_a_lower_bound() -> None:
    """A row cut by its time-out is `censored=True`, in the sense of `observe`."""
    predictor = judged([row(60.0, "make", bound="lower")], [row(1.0)])
    assert predictor.observed == [("make", 60.0, True)]


@pytest.mark.parametrize(
    ("upper_bounds", "observed_s"), [("impute", [0.4]), ("bound", [3.0]), ("skip", [])]
)
def test_an_upper_bound_is_observed_as_asked(upper_bounds: str, observed_s: list[float]) -> None:
    """It is the median of the measured short ones, the bound itself, or not observed."""
    train = [row(0.2), row(0.4), row(2.0), row(50.0), row(3.0, "slept", bound="upper")]
    predictor = judged(train, [row(1.0)], upper_bounds=upper_bounds)
    assert [seconds for name, seconds, _ in predictor.observed if name == "slept"] == observed_s


def test_without_short_rows_a_second_is_imputed() -> None:
    """With no measured run under the bound there is no median, and 1 s is taken."""
    assert typical_short_s([row(50.0), row(3.0, bound="upper")]) == 1.0
