"""Which rows are learned and which are judged, and that the two never meet."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agentkv.commands import analyze_command
from agentkv.durations import Prediction
from agentkv.durations.prediction import LogNormal
from agentkv.evals.workload.traces import Trace, read_trace
from studies.predictor.replay import SPLITS, Fold, folds_of, replay
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


@pytest.mark.parametrize("split", SPLITS)
def test_no_row_is_both_learned_and_judged(split: str, traces: list[Trace]) -> None:
    """Every fold of every split has rows to judge, and none of them is learned."""
    folds = folds_of(split, traces, seed=0)
    assert folds
    for fold in folds:
        assert not {id(r) for r in fold.train} & {id(r) for r in fold.test}
        assert fold.test


def test_the_time_split_judges_what_came_later(traces: list[Trace]) -> None:
    """In each trace every learned row is older than every judged one."""
    (fold,) = folds_of("time", traces, seed=0)
    assert len(fold.train) == 140 + 70
    for trace in traces:
        latest = max(r.order for r in fold.train if r.trace == trace.name)
        assert latest < min(r.order for r in fold.test if r.trace == trace.name)


def test_the_session_split_judges_every_row_once(traces: list[Trace]) -> None:
    """No session is learned and judged, and the judged groups make up the traces."""
    folds = folds_of("session", traces, seed=0)
    judged = [id(r) for fold in folds for r in fold.test]
    assert sorted(judged) == sorted(id(r) for trace in traces for r in trace.rows)
    for fold in folds:
        learned = {(r.trace, r.session) for r in fold.train}
        assert not learned & {(r.trace, r.session) for r in fold.test}


def test_the_tool_split_learns_no_command_with_that_program(traces: list[Trace]) -> None:
    """The program left out does not run in any learned command, and runs in every judged one."""
    folds = folds_of("tool", traces, seed=0)
    assert {"go", "grep", "npm", "ls"} <= {fold.name for fold in folds}
    for fold in folds:
        for part, is_expected in ((fold.train, False), (fold.test, True)):
            for r in part:
                names = {program.name for program in analyze_command(r.command).programs}
                assert (fold.name in names) is is_expected


def test_one_session_or_trace_cannot_be_left_out(tmp_path: Path) -> None:
    """With one session or one trace nothing would be left to learn, so there are no folds."""
    path = write_lines(tmp_path / "one.jsonl", synthetic_lines(10, num_sessions=1))
    one = [read_trace(path)]
    assert folds_of("session", one, seed=0) == folds_of("trace", one, seed=0) == []


@pytest.mark.parametrize(
    ("split", "predicted", "observed"),
    [
        ("tool", [("c", 2), ("d", 2)], "ab"),
        ("time", [("c", 2), ("d", 2), ("c", 2), ("d", 3)], "abcd"),
    ],
)
def test_online_judging_learns_each_row_after_its_forecast(
    split: str, predicted: list[tuple[str, int]], observed: str
) -> None:
    """Frozen judging learns nothing; online judging starts from the same state."""
    train = [row(1.0, "a"), row(60.0, "b", bound="lower")]
    test = [row(3.0, "c", bound="upper"), row(4.0, "d")]
    predictor = MeanByCommand()
    rows = list(replay(Fold(split, "f", train, test), {"mean": predictor}))
    assert [r["command"] for r in rows] == [command for command, _ in predicted]
    assert predictor.predicted == predicted
    assert "".join(command for command, _, _ in predictor.observed) == observed
    # a time-out is a lower bound; "at most 3 s" is observed as 3 s
    assert (
        predictor.observed[:3]
        == [("a", 1.0, False), ("b", 60.0, True), ("c", 3.0, False)][: len(observed)]
    )
