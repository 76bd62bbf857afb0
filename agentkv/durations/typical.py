"""How long one program usually takes, before it was ever run.

The figures are in `typical.toml`. In addition: waits (`sleep`, servers, watchers), and the modes in
which a program does not do its usual work (`--help`, `--dry-run`, `--daemon`). Called by `prior`
for every program of a command. Knows nothing of what was observed.
"""

from __future__ import annotations

import re
import tomllib
from importlib import resources
from itertools import pairwise, takewhile

from agentkv.commands import Program
from agentkv.commands.program import (
    INTERPRETERS,
    SHELLS,
    behind_verb,
    module_of,
    runs_tasks,
    takes_operands,
)
from agentkv.commands.quantities import duration_s

ENDLESS_S = 60.0
"""A server, a watcher or a `tail -f` runs until it is stopped, mostly by the call's time-out."""
MAX_WAIT_S = 3600.0
# By name or key: the letters of the options with which a program runs until it is stopped.
_FOLLOWERS = {
    "dmesg": "wW",
    "docker-compose:logs": "f",
    "docker:compose:logs": "f",
    "docker:logs": "f",
    "inotifywait": "m",
    "journalctl": "f",
    "kubectl:get": "w",
    "kubectl:logs": "f",
    "nc": "l",
    "nvidia-smi": "l",
    "ncat": "l",
    "netcat": "l",
    "php": "S",
    "podman:logs": "f",
    "ssh": "N",
    "tail": "fF",
    "tsc": "w",
    "webpack": "w",
}
# The same of programs that run so without them.
_UNTIL_STOPPED = {
    "docker-compose:up": "d",
    "docker:stats": "",
    "docker:compose:up": "d",
    "htop": "",
    "podman:compose:up": "d",
    "top": "n",
    "watch": "g",
}
_NAMES = frozenset(key.partition(":")[0] for key in (*_FOLLOWERS, *_UNTIL_STOPPED))
_WATCH_FLAGS = frozenset({"--watch", "--watchAll", "--watch-all", "--watch=true"})
_END_FLAGS = frozenset({"--detach", "--wait", "--no-start", "--no-stream", "--chgexit"})
_LETTERS = re.compile(r"-[0-9]{0,6}([a-zA-Z]{1,20})[0-9]{0,6}")
_READS_INPUT = frozenset({"cat", "read", "sort", "tee", "uniq", "wc"})


def sleep_s(program: Program) -> float | None:
    """Seconds that a `sleep` waits, 0.01 to 3600; None where its text does not say."""
    waits = [duration_s(word) for word in program.argv[1:]]
    known = [wait for wait in waits if wait is not None]
    if not waits or len(known) < len(waits):
        return None
    return min(max(0.01, sum(known)), MAX_WAIT_S)


def ping_s(program: Program) -> float:
    """A second between any two of its `-c` packets; without, until its `-w` or for ever."""
    argv = program.argv
    given = {"-i": 1.0, "-w": ENDLESS_S}
    for index, word in enumerate(argv[:-1]):
        value = duration_s(word[2:] or argv[index + 1])
        if value is not None and word[:2] in ("-c", "-i", "-w"):
            given[word[:2]] = value
    if "-c" not in given:
        return min(given["-w"], MAX_WAIT_S)
    return min((given["-c"] - 1) * given["-i"] + 0.1, MAX_WAIT_S)


def runs_until_stopped(program: Program) -> bool:
    """Whether it is a watcher, a follower or a server that is not sent into the background."""
    words = program.argv
    if program.name in _NAMES:
        ends = _find(_UNTIL_STOPPED, program)
        if ends is not None:
            return not (has_letter(words, ends) or not _END_FLAGS.isdisjoint(words))
        follows = _find(_FOLLOWERS, program)
        if follows is not None and (
            has_letter(words, follows) or any(word[:8] == "--follow" for word in words)
        ):
            return True
    return not _WATCH_FLAGS.isdisjoint(words)


def waits_for_input(program: Program) -> bool:
    """Whether it reads a standard input on which the text gives it nothing: nobody knows how long.

    At once where that input is closed, until the call's time-out where it is a terminal.
    """
    if program.has_input or program.name not in _READS_INPUT:
        return False
    return program.name == "read" or all(word[:1] == "-" for word in program.argv[1:])


def _find(table: dict[str, str], program: Program) -> str | None:
    return table.get(program.name, table.get(program.key))


def has_letter(words: tuple[str, ...], letters: str) -> bool:
    """Whether one of these letters is among the options, alone or in a cluster such as `-dit`."""
    for word in words:
        cluster = _LETTERS.fullmatch(word) if word[:1] == "-" else None
        if cluster and not set(letters).isdisjoint(cluster[1]):
            return True
    return False


_HELP = frozenset({"--help", "-help"})
_VERSION = frozenset({"--version", "-version"})
_ANSWERS = frozenset({"help", "version"})
"""Subcommands that answer."""
_SHORT = frozenset({"-V", "-h"})
"""They ask where they stand alone, but not of those with whom they are usual."""
_NO_QUESTION = frozenset({"ctest", "df", "du", "free", "ls", "mvn", "sort"})
_ASKED_BY_V = frozenset(
    """
    bun bundle clang cmake docker eslint g++ gcc gem git gradle gradlew helm jest make mvn mvnw
    nginx node npm npx php pnpm prettier ruby terraform tsc vite webpack yarn
    """.split()  # noqa: SIM905 - the list reads best as text
)
"""With others a lone `-v` makes a usual run say more."""
_SYNTAX_CHECKS = {
    **dict.fromkeys(SHELLS, frozenset({"-n"})),
    "node": frozenset({"--check", "-c"}),
    "perl": frozenset({"-c", "-wc", "-cw"}),
    "php": frozenset({"-l"}),
    "ruby": frozenset({"-c", "-wc", "-cw"}),
}
"""Options that have a script read, not run."""
_PASSES_ON = (":exec", ":run")
"""What stands behind these is for another program, mostly one that is built or started first."""
_PLANS = re.compile(
    r"--(?:co|collect-only|dry-run|dryrun|just-print|list|list-tests|listTests|setup-plan|what-if)"
    r"(?:=(?!false|none).*)?"
)
_DETACHED = re.compile(
    r"--(?:background|daemon|daemonize|detach|detached|fork)(?:=(?!no|false).*)?"
)
_NO = frozenset({"0", "false", "no"})
_DETACH_LETTERS = {
    "celery": "D",
    "docker:run": "d",
    "gunicorn": "D",
    "haproxy": "D",
    "memcached": "d",
    "php-fpm": "D",
    "podman:run": "d",
    "uwsgi": "d",
}
"""By name or key."""


def mode_of(program: Program) -> str:
    """What sets its run apart from the usual ones of the same program; empty for a usual one."""
    if is_question(program):
        return "question "
    if program.is_endless or runs_until_stopped(program):
        return "endless "
    if detaches(program):
        return "detached "
    return "plan " if tells_its_plan(program) else ""


def is_question(program: Program) -> bool:
    """Whether it is only asked for its help or its version: `pytest --help`, `docker version`.

    Or whether a script is in order: `bash -n x.sh`. A version with a word behind it is an
    argument: `helm install x --version 1.2`.
    """
    words = program.argv[1:]
    if words == ("-v",) and program.name in _ASKED_BY_V:
        return True
    if checks := _SYNTAX_CHECKS.get(program.name):
        options = takewhile(lambda word: word[:1] == "-", words)
        if not checks.isdisjoint(options):
            return True
    if len(words) == 1 and words[0] in _HELP | _VERSION | _SHORT:
        return words[0] not in _SHORT or program.name not in _NO_QUESTION
    if takes_operands(program.name):
        return False
    name, *subcommands = program.key.split(":")
    if not runs_tasks(name) and program.key.endswith(_PASSES_ON):
        words = words[:2]
    elif not _ANSWERS.isdisjoint(subcommands[:2]) and "run" not in subcommands:
        return True
    return any(
        word in _HELP or (word in _VERSION and after[:1] == "-")
        for word, after in pairwise((*words, "-"))
    )


def detaches(program: Program) -> bool:
    """Whether it sends itself to the background and returns: `redis-server --daemonize yes`."""
    words = program.argv[1:]
    letters = _DETACH_LETTERS.get(program.name, _DETACH_LETTERS.get(program.key, ""))
    if letters and has_letter(words, letters):
        return True
    return any(
        word[:2] == "--" and _DETACHED.fullmatch(word) and after not in _NO
        for word, after in pairwise((*words, ""))
    )


def tells_its_plan(program: Program) -> bool:
    """Whether it only says what it would do: `pytest --collect-only`, `make -n`."""
    words = program.argv[1:]
    is_dry_make = program.name == "make" and "-n" in words
    return is_dry_make or any(word[:2] == "--" and _PLANS.fullmatch(word) for word in words)


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
