"""Runs of alike commands are remembered under the same names."""

import pytest

from agentkv.commands import analyze_command
from agentkv.durations.keys import Keys, keys_of
from agentkv.durations.prior import prior_input


def _keys(text: str) -> Keys:
    command = analyze_command(text)
    return keys_of(command, prior_input(command).main)


def _num_shared(text: str, other: str) -> int:
    pairs = zip(_keys(text).levels, _keys(other).levels, strict=True)
    return sum(own == others for own, others in pairs)


@pytest.mark.parametrize(
    ("text", "other", "num_shared"),
    [
        *(("make a", "make a", 4), ("tool --job 1 x", "tool --job 2 x", 2)),
        *(("git -C repo log", "git log", 3), ("git -C repo", "git", 3)),
        *(("make a", "make b", 0), ("make -j2", "make -j8", 3)),
        ("python -m pytest a.py", "python -m pytest b.py", 1),
        ("python -m pytest a.py -q", "python -m pytest -q a.py", 2),
        # a module is the program that it is by itself
        ("python -m pip list", "python -m pip install x", 0),
        *(("python -m pip list", "pip list", 3), ("python -m pytest -q a.py", "pytest -q a.py", 3)),
        *(("python -m pytest --help", "pytest --help", 3), ("python -m test", "test -f x", 0)),
        ("python -c 'a()'", "python -c 'b()'", 2),
        # what lasts as its words say shares nothing with other words
        *(("sleep 1", "sleep 600", 0), ("sleep 1", "sleep $N", 0)),
        *(("sleep 1 && ls", "sleep 600 && ls", 0), ("tail log", "tail -f log", 0)),
        *(("ls", "while true; do ls; done", 0), ("npm run dev", "npm run dev &", 0)),
        # nor does what a program is asked, or only plans, or does in the background
        *(("pytest -q", "pytest --version", 0), ("./build.sh", "./build.sh --help", 0)),
        *(("pytest -q", "pytest --collect-only -q", 0), ("make all", "make -n all", 0)),
        *(("gunicorn app", "gunicorn --daemon app", 0), ("docker run x", "docker run -d x", 0)),
        ("pytest --help", "pytest --version", 1),
    ],
)
def test_like_commands_share_levels(text: str, other: str, num_shared: int) -> None:
    """Levels go from the same program to the very same text; a wait shares with no other wait."""
    assert _num_shared(text, other) == num_shared


def test_a_question_shares_no_effect_of_its_program() -> None:
    """A program's help shares no effect with its runs, so that a slow program has quick help."""
    effects = set(_keys("./build.sh --all").effects) & set(_keys("./build.sh --help").effects)
    assert effects == {"*"}


@pytest.mark.parametrize("text", ["x" * 5000, "make " + "-a " * 900, "sleep " + "9" * 2000, ""])
def test_keys_are_short(text: str) -> None:
    """Every key has under 500 characters, for any text."""
    keys = _keys(text)
    assert all(len(key) < 500 for key in (*keys.levels, *keys.effects))
