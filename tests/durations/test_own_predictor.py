"""A predictor of one's own: found by its name, saved and loaded, and guarded where it fails."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentkv.cli import main as agentkv
from agentkv.commands import analyze_command
from agentkv.durations import OfflineModels
from agentkv.durations.predictor import GuardedPredictor
from agentkv.errors import InputError
from agentkv.guard import Fault
from agentkv.predictors import (
    ANY_COMMAND,
    BackoffEstimator,
    CommandAnalysis,
    DurationPredictor,
    LogNormal,
    Prediction,
    Predictor,
    load_predictor,
    predictor_names,
)

EXAMPLE = Path(__file__).parents[2] / "examples/predictors/by_program.py"
BY_PROGRAM = f"{EXAMPLE}:ByProgram"
MAKE = analyze_command("make -j8 all")


class Sure(Predictor):
    """Knows that everything takes a tenth of a second, and counts what it is shown."""

    def __init__(self) -> None:
        self.num_runs = 0

    def predict(self, command: CommandAnalysis) -> Prediction:
        return Prediction.of(LogNormal(math.log(0.1), 0.5), source="sure", explanation="It is.")

    def observe(self, command: CommandAnalysis, duration_s: float, *, censored: bool) -> None:
        self.num_runs += 1

    def state(self) -> dict[str, Any]:
        return {"num_runs": self.num_runs}

    def restore(self, state: dict[str, Any]) -> None:
        self.num_runs = state["num_runs"]


def test_a_predictor_that_overrides_nothing_is_uncertain_of_everything() -> None:
    """The base class predicts any command, learns nothing and refuses a state that was learned."""
    predictor = DurationPredictor("agentkv.predictors:Predictor")
    prediction = predictor.predict("make")
    assert (prediction.speed, prediction.distribution) == ("uncertain", ANY_COMMAND)
    with pytest.raises(ValueError, match=r"learns nothing, but got \{'a': 1\}"):
        Predictor().restore({"a": 1})


@pytest.mark.parametrize(("median_s", "speed"), [(0.1, "fast"), (2.0, "uncertain"), (60.0, "slow")])
def test_a_distribution_makes_a_prediction(median_s: float, speed: str) -> None:
    """Speed and TTL follow from the distribution: a fast command's pin outlasts 90% of its runs."""
    distribution = LogNormal(math.log(median_s), 0.5)
    prediction = Prediction.of(distribution, source="mine", explanation="")
    assert (prediction.speed, prediction.p50_s) == (speed, pytest.approx(median_s))
    if speed == "fast":
        assert prediction.ttl_s == prediction.p90_s


def test_the_shipped_predictors_come_first() -> None:
    """They are known by their names, and have no class to load."""
    assert predictor_names()[:2] == ["default", "context_serve"]
    assert load_predictor("default") is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("oracle", r"predictor: got 'oracle', allowed are default, .*MODULE:CLASS"),
        ("no.such.module:Mine", r"predictor: got 'no.such.module:Mine': ModuleNotFoundError"),
        ("agentkv.durations.backoff:Mine", r"not a subclass of agentkv.predictors.Predictor; .*B"),
        ("agentkv.policies:Policy", r"not a subclass of agentkv.predictors.Predictor"),
    ],
)
def test_a_name_that_leads_to_no_predictor_is_refused(
    name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says what was asked for and what is allowed, in Python and on the command line."""
    with pytest.raises(InputError, match=message):
        DurationPredictor(name)
    assert agentkv(["predict", "ls", "--kind", name]) == 2
    assert "agentkv predict: predictor: got" in capsys.readouterr().err


def test_the_example_learns_a_median_for_each_program(tmp_path: Path) -> None:
    """A file's class is a kind like others: it predicts, learns, and is saved and loaded."""
    predictor = DurationPredictor(BY_PROGRAM)
    assert predictor.predict("make").source == "none"
    for duration_s in (20.0, 30.0, 40.0):
        predictor.observe("make -j8 all", duration_s)
    predictor.observe("make", 3.0, censored=True)
    predictor.save(tmp_path / "state.json")
    again = DurationPredictor(BY_PROGRAM)
    assert again.load(tmp_path / "state.json")
    prediction = again.predict("cd /x && make test | tail -3")
    assert (prediction.source, prediction.speed) == ("program", "slow")
    assert prediction.p50_s == pytest.approx(30.0)
    assert not DurationPredictor().load(tmp_path / "state.json")


def test_the_command_line_predicts_by_a_class_in_a_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`agentkv predict --kind FILE.py:CLASS` says what the predictor says."""
    assert agentkv(["predict", "make", "--kind", BY_PROGRAM]) == 0
    assert "source    none: No run of it was seen." in capsys.readouterr().out


# What its faults cost


def raises(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("planted")


def predicts(**changes: Any) -> Callable[..., Any]:
    good: dict[str, Any] = {
        **{"speed": "fast", "p50_s": 0.1, "p90_s": 0.2, "ttl_s": 0.2, "source": "bad"},
        **{"explanation": "", "distribution": LogNormal(-2.3, 0.5)},
    }
    return lambda self, command: Prediction(**{**good, **changes})


class FailsAfterTheFirst(LogNormal):
    """Gives probabilities until somebody asks about a minute."""

    def p_over(self, seconds: float) -> float:
        return 1 / 0 if seconds > 59.0 else super().p_over(seconds)


BAD_ANSWERS: dict[str, Callable[..., Any]] = {
    "raises": raises,
    "answers nothing": lambda self, command: None,
    "answers seconds": lambda self, command: 3.0,
    "knows another speed": predicts(speed="quick"),
    "pins for ever": predicts(ttl_s=math.inf),
    "pins for no number": predicts(ttl_s=math.nan),
    "is quicker than nothing": predicts(p50_s=-1.0),
    "has no distribution": predicts(distribution=None),
    "has probabilities above 1": predicts(distribution=LogNormal(math.nan, 0.5)),
}


def guarded(**methods: Any) -> tuple[GuardedPredictor, list[Fault]]:
    """A predictor with these methods, guarded as on a server, and what its guard reports."""
    faults: list[Fault] = []
    default = BackoffEstimator(OfflineModels.shipped().prior)
    predictor = GuardedPredictor(type("Bad", (Sure,), methods)(), default, faults.append)
    return predictor, faults


@pytest.mark.parametrize("answer", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_where_it_cannot_answer_the_default_predictor_does(answer: Callable[..., Any]) -> None:
    """The answer is that of the default predictor, which has learned the same runs."""
    predictor, faults = guarded(predict=answer)
    default = DurationPredictor()
    default.observe("frobnicate", 20.0)
    predictor.observe(analyze_command("frobnicate"), 20.0, censored=False)
    answered = predictor.predict(analyze_command("frobnicate"))
    assert answered.p50_s == default.predict("frobnicate").p50_s
    assert [(fault.question, fault.is_late) for fault in faults] == [("predict", False)]


def test_a_distribution_that_fails_later_is_the_predictors_fault() -> None:
    """A policy asks it for probabilities, and gets those of any command."""
    predictor, faults = guarded(predict=predicts(distribution=FailsAfterTheFirst(-2.3, 0.5)))
    prediction = predictor.predict(MAKE)
    assert (prediction.source, faults) == ("bad", [])
    assert prediction.p_over(60.0) == ANY_COMMAND.p_over(60.0)
    assert [fault.question for fault in faults] == ["p_over"]


def test_what_it_cannot_learn_save_or_take_back_is_lost() -> None:
    """A state other than JSON counts as nothing learned; one not taken back is a ValueError."""
    predictor, faults = guarded(observe=raises, state=lambda self: {"runs": {1, 2}}, restore=raises)
    predictor.observe(MAKE, 30.0, censored=False)
    assert predictor.state() == {}
    assert [fault.question for fault in faults] == ["observe", "state"]
    with pytest.raises(ValueError, match="RuntimeError: planted"):
        predictor.restore({"runs": 3})


def test_a_guarded_predictor_is_saved_and_loaded_like_others(tmp_path: Path) -> None:
    """On a server and without a guard the file is the same."""
    faults: list[Fault] = []
    on_server = DurationPredictor(BY_PROGRAM, on_fault=faults.append)
    on_server.observe("make", 30.0)
    on_server.save(tmp_path / "state.json")
    again = DurationPredictor(BY_PROGRAM)
    assert again.load(tmp_path / "state.json")
    assert again.predict("make").p50_s == on_server.predict("make").p50_s
    assert faults == []
