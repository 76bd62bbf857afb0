"""The levels context, tool and all, and how they stay bounded."""

import json

import pytest

from agentkv.commands import analyze_command
from agentkv.durations.curves import DurationCurve
from agentkv.durations.levels import COLD_START, MAX_CONTEXTS, MAX_TOOLS, Levels, main_program


def _observe(levels: Levels[DurationCurve], command: str, times: int = 1) -> None:
    for _ in range(times):
        for window in levels.to_observe(analyze_command(command)):
            window.add(1.0, censored=False)


@pytest.mark.parametrize(
    ("command", "key"),
    [
        ("cd /testbed && python -m pytest -q", "python:-m:pytest"),
        ("cat x | python train.py", "python:train.py"),
        ("ls && go test ./... | tail -5", "go:test"),
        ("git status", "git:status"),
        ("make docs & frobnicate", "frobnicate"),
        ("", None),
    ],
)
def test_main_program_is_what_decides(command: str, key: str | None) -> None:
    """The key of a command is that of the program that most likely takes the time."""
    program = main_program(analyze_command(command))
    assert (program and program.key) == key


@pytest.mark.parametrize(
    ("observed", "times", "key"),
    [
        ("go test ./a", COLD_START, "go:test"),
        ("go test ./a", COLD_START - 1, None),
        ("go vet", COLD_START, "go"),
        ("frobnicate", COLD_START, None),
        ("", COLD_START, None),
    ],
)
def test_best_level_is_the_most_specific_warm_one(
    observed: str, times: int, key: str | None
) -> None:
    """`go test` is judged by its own runs, else by those of go, else by all."""
    levels = Levels(DurationCurve)
    _observe(levels, observed, times)
    level = levels.best(analyze_command("go test ./b"))
    assert (level.key, level.is_warm) == (key, times >= COLD_START)


def test_keys_are_bounded() -> None:
    """However many programs run, the levels keep a fixed number of them, the latest."""
    levels = Levels(DurationCurve)
    for number in range(MAX_CONTEXTS + 10):
        _observe(levels, f"tool{number}")
    state = levels.state()
    assert len(state["contexts"]) == MAX_CONTEXTS
    assert len(state["tools"]) == MAX_TOOLS
    assert f"tool{MAX_CONTEXTS + 9}" in state["tools"]


def test_observed_key_is_kept() -> None:
    """A tool in use is not forgotten for all the others that come and go."""
    levels = Levels(DurationCurve)
    for number in range(3 * MAX_CONTEXTS):
        _observe(levels, f"tool{number}")
        _observe(levels, "go test")
    assert len(levels.best(analyze_command("go test")).window) > COLD_START


def test_restored_levels_are_the_same() -> None:
    """State goes through JSON and comes back."""
    levels, restored = Levels(DurationCurve), Levels(DurationCurve)
    _observe(levels, "go test ./a", 7)
    restored.restore(json.loads(json.dumps(levels.state())))
    assert restored.state() == levels.state()


@pytest.mark.parametrize(
    "state", [{}, {"contexts": [], "tools": {}, "all": []}, {"contexts": {"a": 1}}]
)
def test_foreign_state_is_refused(state: dict[str, object]) -> None:
    """State of another shape is an error."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        Levels(DurationCurve).restore(state)
