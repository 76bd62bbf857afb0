"""How long well-known programs usually take: what is known of a command before it was ever run.

The figures are in `typical.toml`. The first match counts: the program's key, then words such as
`test` or `install` in its subcommand or task, then its name. A module that an interpreter runs
takes what it takes as a program.
"""

from __future__ import annotations

import re
import tomllib
from importlib import resources

from agentkv.commands import Program
from agentkv.commands.program import INTERPRETERS, behind_verb, module_of, runs_tasks
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
_ALIASES = {
    **dict.fromkeys(("docker-compose", "podman-compose"), "docker:compose"),
    **dict.fromkeys(("podman", "nerdctl"), "docker"),
    **dict.fromkeys(("mamba", "micromamba"), "conda"),
    "bazelisk": "bazel",
    "gmake": "make",
    "gradlew": "gradle",
    "mvnw": "mvn",
    "oc": "kubectl",
    "tofu": "terraform",
}
"""Programs that do the same as one in the tables."""


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
    if module := module_of(program):
        known_s = _listed_s(module.name, module.key)
        if known_s is not None:
            return known_s
    return _listed_s(program.name, program.key)


def _listed_s(name: str, key: str) -> float | None:
    if alias := _ALIASES.get(name):
        name, key = alias.partition(":")[0], alias + key.removeprefix(name)
    known_s = _BY_KEY.get(key)
    if known_s is not None:
        return known_s
    rest = key.partition(":")[2]
    own = behind_verb(name, key)
    told_s = _told_s(name, own)
    if not told_s and own != rest:  # then what stands before it: `gh:run` of `gh:run:view`
        known_s = _BY_KEY.get(key.removesuffix(f":{own}"))
        if known_s is not None:
            return known_s
        told_s = _told_s(name, rest)
    by_name_s = _BY_NAME.get(name)
    if not told_s or by_name_s is None:
        return told_s or by_name_s
    # `playwright test` takes what playwright takes, `flutter doctor` the time that flutter starts
    return max(told_s, by_name_s if told_s >= _LASTING_S else min(by_name_s, _LASTING_S))


def _told_s(name: str, rest: str) -> float:
    """What the words of its subcommand say, and of the name of a project's own script or task."""
    is_script = name.startswith("./") or name.endswith(_SCRIPT_ENDINGS)
    is_runner = name in _TASK_RUNNERS or runs_tasks(name)
    words = _words_of(f"{name} {rest}" if is_script else rest)
    tasks = _words_of(name if is_script else rest if is_runner or name in INTERPRETERS else "")
    programs = rest.split(":") if is_runner else []  # `yarn jest`, `npm run eslint:fix`
    lasting = (_BY_NAME.get(word, 0.0) for word in programs)
    return max(
        (
            *(_BY_WORD.get(word, 0.0) for word in words),
            *(_BY_TASK.get(word, 0.0) for word in tasks),
            *(seconds for seconds in lasting if seconds >= _LASTING_S),
        ),
        default=0.0,
    )


def _words_of(text: str) -> list[str]:
    return _WORD_ENDS.sub(" ", text).split()
