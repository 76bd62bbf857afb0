"""Which rows are learned from and which are judged, and that the two never meet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentkv.commands import analyze_command
from agentkv.evals.predictor_replay import LearningRules, replay, typical_short_s
from agentkv.evals.predictor_rows import Scoring, judge
from agentkv.evals.predictor_splits import (
    Fold,
    Split,
    cold_split,
    session_split,
    time_split,
    tool_split,
    trace_split,
)
from agentkv.evals.workload.traces import Trace, read_trace

from .trace_rows import MeanByCommand, row, synthetic_lines, write_lines


@pytest.fixture
def traces(tmp_path: Path) -> list[Trace]:
    """Two traces of 120 and 60 commands."""
    paths = [
        write_lines(tmp_path / f"{num}.jsonl", synthetic_lines(num, seed=num)) for num in (120, 60)
    ]
    return [read_trace(path) for path in paths]


SPLITS: list[Callable[[list[Trace]], Split]] = [
    lambda traces: time_split(traces, 0.7),
    lambda traces: session_split(traces, num_folds=4, seed=0),
    lambda traces: tool_split(traces, min_rows=10),
    trace_split,
    cold_split,
]


@pytest.mark.parametrize("make", SPLITS)
def test_no_row_is_both_learned_and_judged(
    make: Callable[[list[Trace]], Split], traces: list[Trace]
) -> None:
    """In every fold of every split."""
    split = make(traces)
    assert split.folds
    for fold in split.folds:
        assert not {id(r) for r in fold.train} & {id(r) for r in fold.test}
        assert fold.test


def test_the_time_split_judges_what_came_later(traces: list[Trace]) -> None:
    """In each trace every learned row is older than every judged one."""
    (fold,) = time_split(traces, 0.7).folds
    assert len(fold.train) == 84 + 42
    for trace in traces:
        latest = max(r.order for r in fold.train if r.trace == trace.name)
        assert latest < min(r.order for r in fold.test if r.trace == trace.name)


def test_the_session_split_judges_every_row_once(traces: list[Trace]) -> None:
    """No session is in both parts, and the groups make up the traces."""
    split = session_split(traces, num_folds=4, seed=0)
    judged = [id(r) for fold in split.folds for r in fold.test]
    assert sorted(judged) == sorted(id(r) for trace in traces for r in trace.rows)
    for fold in split.folds:
        learned = {(r.trace, r.session) for r in fold.train}
        assert not learned & {(r.trace, r.session) for r in fold.test}


def test_the_tool_split_learns_no_command_with_that_program(traces: list[Trace]) -> None:
    """Not even inside a longer command."""
    split = tool_split(traces, min_rows=10)
    assert {"go", "grep", "npm", "ls"} <= {fold.name for fold in split.folds}
    for fold in split.folds:
        for part, is_there in ((fold.train, False), (fold.test, True)):
            for r in part:
                names = {program.name for program in analyze_command(r.command).programs}
                assert (fold.name in names) is is_there


def test_one_session_or_trace_cannot_be_left_out(tmp_path: Path) -> None:
    """Nothing would be left to learn from: no folds."""
    path = write_lines(tmp_path / "one.jsonl", synthetic_lines(10, num_sessions=1))
    one = [read_trace(path)]
    assert session_split(one, num_folds=5, seed=0).folds == ()
    assert trace_split(one).folds == ()


def test_frozen_judging_tells_the_predictor_nothing() -> None:
    """Every forecast is made after the learned rows and no others."""
    fold = Fold("f", (row(1.0, "a"), row(2.0, "b")), (row(3.0, "c"), row(4.0, "d")))
    predictor = MeanByCommand()
    replay(fold, predictor, ("frozen",), LearningRules())
    assert predictor.observed == [("a", 1.0, False), ("b", 2.0, False)]
    assert predictor.predicted == [("c", 2), ("d", 2)]


def test_online_judging_tells_each_row_after_its_forecast() -> None:
    """The frozen pass before it leaves no trace."""
    fold = Fold("f", (row(1.0, "a"),), (row(3.0, "c"), row(4.0, "d")))
    predictor = MeanByCommand()
    replay(fold, predictor, ("frozen", "online"), LearningRules())
    assert predictor.predicted == [("c", 1), ("d", 1), ("c", 1), ("d", 2)]
    assert predictor.observed == [("a", 1.0, False), ("c", 3.0, False), ("d", 4.0, False)]


def test_models_come_from_the_fold_that_is_learned(traces: list[Trace]) -> None:
    """The maker of predictors is called once a fold, with that fold, before any judging."""
    split = session_split(traces, num_folds=3, seed=0)
    made: list[tuple[Fold, MeanByCommand]] = []

    def make(fold: Fold) -> dict[str, MeanByCommand]:
        made.append((fold, MeanByCommand()))
        return {"mean": made[-1][1]}

    rows = list(judge(split, make, Scoring(num_resamples=2)))
    assert [fold for fold, _ in made] == list(split.folds)
    for fold, predictor in made:
        learned = [command for command, _, _ in predictor.observed[: len(fold.train)]]
        assert learned == [r.command for r in fold.train]
        assert predictor.predicted[0][1] == len(fold.train)
    assert [r["mode"] for r in rows] == ["frozen", "online"]
    assert rows[0]["num_test"] == 180


def test_a_time_out_is_told_as_a_lower_bound() -> None:
    """`censored=True`, in the sense of `observe`."""
    predictor = MeanByCommand()
    fold = Fold("f", (row(60.0, "make", bound="lower"),), (row(1.0),))
    replay(fold, predictor, ("frozen",), LearningRules())
    assert predictor.observed == [("make", 60.0, True)]


@pytest.mark.parametrize(
    ("upper_bounds", "told"), [("impute", [0.4]), ("bound", [3.0]), ("skip", [])]
)
def test_an_upper_bound_is_told_as_the_rules_say(upper_bounds: str, told: list[float]) -> None:
    """The median of the measured short ones, the bound itself, or not at all."""
    train = (row(0.2), row(0.4), row(2.0), row(50.0), row(3.0, "slept", bound="upper"))
    predictor = MeanByCommand()
    rules = LearningRules(upper_bounds=upper_bounds)
    replay(Fold("f", train, (row(1.0),)), predictor, ("frozen",), rules)
    assert [duration_s for command, duration_s, _ in predictor.observed if command == "slept"] == (
        told
    )


def test_without_short_rows_a_second_is_taken() -> None:
    """There is nothing to take a median of."""
    assert typical_short_s([row(50.0), row(3.0, bound="upper")]) == 1.0
