"""How long well-known programs usually take: what is known of a command before it was ever run.

The figures are in `typical.toml`. The first match counts: the program's key, then words such as
`test` or `install` in its subcommand or task, then its name.
"""

from __future__ import annotations

import re
import tomllib
from importlib import resources

from agentkv.commands import Program
from agentkv.commands.interpreters import INTERPRETERS
from agentkv.commands.program import runs_tasks
from agentkv.durations.modes import detaches, is_question, tells_its_plan
from agentkv.durations.waits import (
    ENDLESS_S,
    ping_s,
    runs_until_stopped,
    sleep_s,
    waits_for_input,
)

UNKNOWN_S = 1.0
"""A program nobody knows: many are small tools, some run for long; neither fast nor slow."""

_WORD_ENDS = re.compile(r"[:._/-]+")
_SCRIPT_ENDINGS = (".sh", ".py", ".js", ".rb", ".pl")
_QUESTION_S = 0.2
_PLAN_S = 1.0
"""At most, of saying what would be done: `pytest --collect-only`, `make -n`."""
_SETTINGS = re.compile(r"(?:.*/)?(?:activate|\.env|\.\w*rc|\.\w*profile|nvm\.sh|env)")
_SETTINGS_S = 0.1
"""Of reading an environment into the shell."""
_SEARCHES = frozenset({"find", "grep", "rg", "ag", "du", "fd"})
_WHOLE_DISK = frozenset({"/", "/*", "/usr", "~", "$HOME"})
_WHOLE_DISK_S = 5.0
_LASTING_S = 1.0
_RUNNER_S = 0.5
"""Of what runs programs elsewhere: the way there and back."""
_DETACH_S = 1.0
"""Of a server until it is in the background."""
_TASK_RUNNERS = frozenset({"composer", "grunt", "gulp", "just", "lerna", "nx", "turbo"})
"""Besides those that `commands` knows."""


def _read_tables() -> list[dict[str, float]]:
    text = resources.files("agentkv.durations").joinpath("typical.toml").read_text("utf-8")
    tables = tomllib.loads(text)
    return [
        {name: float(seconds) for seconds, names in tables[kind].items() for name in names.split()}
        for kind in ("key", "name", "word", "task", "runner")
    ]


_BY_KEY, _BY_NAME, _BY_WORD, _BY_TASK, _BY_RUNNER = _read_tables()


def typical_s(program: Program) -> float | None:
    """Seconds this program usually takes; None where nothing of it is known."""
    if is_question(program):
        return min(_QUESTION_S, _BY_NAME.get(program.name, _QUESTION_S))
    if program.name == "sleep":
        return sleep_s(program)
    if runs_until_stopped(program):
        return ENDLESS_S
    if waits_for_input(program):
        return None
    if program.is_runner:
        return _BY_RUNNER.get(program.key, _RUNNER_S)
    if program.name == "ping":
        return ping_s(program)
    if program.name in ("source", ".") and _SETTINGS.fullmatch("".join(program.argv[1:2])):
        return _SETTINGS_S
    if program.name in _SEARCHES and not _WHOLE_DISK.isdisjoint(program.argv):
        return _WHOLE_DISK_S
    known_s = _known_s(program)
    if known_s is not None and tells_its_plan(program):
        return min(known_s, _PLAN_S)
    return _DETACH_S if known_s == ENDLESS_S and detaches(program) else known_s


def _known_s(program: Program) -> float | None:
    known = _BY_KEY.get(program.key)
    if known is not None:
        return known
    told_s = _told_s(program)
    by_name_s = _BY_NAME.get(program.name)
    if told_s >= _LASTING_S and by_name_s is not None:
        return max(told_s, by_name_s)  # `playwright test` takes what playwright takes
    return told_s or by_name_s


def _told_s(program: Program) -> float:
    """What the words of its subcommand say, and of the name of a project's own script or task."""
    name, _, rest = program.key.partition(":")
    is_script = name.startswith("./") or name.endswith(_SCRIPT_ENDINGS)
    is_task = name in INTERPRETERS or name in _TASK_RUNNERS or runs_tasks(name)
    words = _words_of(f"{name} {rest}" if is_script else rest)
    tasks = _words_of(name if is_script else rest if is_task else "")
    return max(
        (
            *(_BY_WORD.get(word, 0.0) for word in words),
            *(_BY_TASK.get(word, 0.0) for word in tasks),
        ),
        default=0.0,
    )


def _words_of(text: str) -> list[str]:
    return _WORD_ENDS.sub(" ", text).split()
