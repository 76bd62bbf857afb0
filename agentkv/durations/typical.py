"""How long one program usually takes, before its first run.

The figures are in `typical.toml`. In addition: waits (`sleep`, servers, watchers), and the modes in
which a program does not do its usual work (`--help`, `--dry-run`, `--daemon`). Called by `prior`
for every program of a command. Knows nothing of what was observed.
"""

from __future__ import annotations

import re
from itertools import pairwise, takewhile

from agentkv.commands import Program
from agentkv.commands.program import (
    INTERPRETERS,
    RUNS_TASKS,
    SHELLS,
    TAKES_OPERANDS,
    behind_verb,
    module_of,
    tables_in,
)
from agentkv.commands.quantities import duration_s

ENDLESS_S = 60.0
"""A server, a watcher or a `tail -f` runs until it is stopped, mostly by the call's time-out."""
MAX_WAIT_S = 3600.0
UNKNOWN_S = 1.0
"""An unlisted program: many are small tools, some run for long; neither fast nor slow."""
_LASTING_S = 1.0
_QUESTION_S = 0.2
_PLAN_S = 1.0
"""Time to print what would be done, at most."""
_SETTINGS_S = 0.1
"""Time to read an environment into the shell."""
_WHOLE_DISK_S = 5.0
_STATE_S = 30.0
"""Time until something elsewhere is ready."""
_RUNNER_S = 0.5
"""The round trip to a container or host, if it is not listed."""
_DETACH_S = 1.0
"""Time until a server is in the background."""

TABLES = tables_in("durations", "typical.toml")


def _by_program(kind: str) -> dict[str, str]:
    """Return a table of the file as {program: value}; in the file it is {value: programs}."""
    return {name: value for value, names in TABLES[kind].items() for name in names.split()}


_BY_KEY, _BY_NAME, _BY_WORD, _BY_TASK, _BY_RUNNER, IMPORT_S = (
    {name: float(seconds) for name, seconds in _by_program(kind).items()}
    for kind in ("key", "name", "word", "task", "runner", "import")
)
"""Seconds by key, name, words, and of importing a Python package from a warm cache."""
_ALIASES = _by_program("alias")
_FOLLOWS = _by_program("follows")
_UNTIL_STOPPED = _by_program("until_stopped")
_ENDLESS_NAMES = frozenset(key.partition(":")[0] for key in (*_FOLLOWS, *_UNTIL_STOPPED))
_DETACHES = _by_program("detaches")
_WAITS = {word: frozenset(names.split()) for word, names in TABLES["waits"].items()}
_SERVER_IMAGES = _by_program("images")
_ASKED_BY_V = _by_program("version")
_SYNTAX_CHECKS = {
    name: frozenset(options.split())
    for name, options in (dict.fromkeys(SHELLS, "-n") | _by_program("syntax_check")).items()
}

_WATCH_FLAGS = frozenset({"--watch", "--watchAll", "--watch-all", "--watch=true"})
_END_FLAGS = frozenset({"--detach", "--wait", "--no-start", "--no-stream", "--chgexit"})
_RUNS_IMAGES = frozenset({"docker:run", "podman:run", "nerdctl:run", "docker:container:run"})
_PUBLISHES = frozenset({"-p", "-P", "--publish", "--publish-all"})
_LETTERS = re.compile(r"-[0-9]{0,6}([a-zA-Z]{1,20})[0-9]{0,6}")
_READS_INPUT = frozenset({"cat", "read", "sort", "tee", "uniq", "wc"})
_HELP = frozenset({"--help", "-help"})
_VERSION = frozenset({"--version", "-version"})
_ANSWERS = frozenset({"help", "version"})
"""Subcommands that answer."""
_SHORT = frozenset({"-V", "-h"})
"""A lone one of them is a question, except to programs that have it as a usual option."""
_NO_QUESTION = frozenset({"ctest", "df", "du", "free", "ls", "mvn", "sort"})
_PASSES_ON = (":exec", ":run")
"""What follows them is for another program, mostly one that is built or started first."""
_PLANS = re.compile(
    r"--(?:co|collect-only|dry-run|dryrun|just-print|list|list-tests|listTests|setup-plan|what-if)"
    r"(?:=(?!false|none).*)?"
)
_DETACHED = re.compile(
    r"--(?:background|daemon|daemonize|detach|detached|fork)(?:=(?!no|false).*)?"
)
_NO = frozenset({"0", "false", "no"})
_SETTINGS = re.compile(r"(?:.*/)?(?:activate|\.env|\.\w*rc|\.\w*profile|nvm\.sh|env)")
_SEARCHES = frozenset({"find", "grep", "rg", "ag", "du", "fd"})
_WHOLE_DISK = frozenset({"/", "/*", "/usr", "~", "$HOME"})
_WORD_ENDS = re.compile(r"[:._/-]+")
_SCRIPT_ENDINGS = (".sh", ".py", ".js", ".rb", ".pl", ".bat", ".cmd", ".ps1")
_TASK_RUNNERS = frozenset({"composer", "grunt", "gulp", "just", "lerna", "nx", "turbo"})
"""Task runners in addition to those that `commands` knows."""


def typical_s(program: Program) -> float | None:
    """Return the seconds this program usually takes; None if nothing is known of it."""
    if is_question(program):
        return min(_QUESTION_S, _BY_NAME.get(program.name, _QUESTION_S))
    if program.name == "sleep":
        return sleep_s(program)
    if runs_until_stopped(program):
        return ENDLESS_S
    if waits_for_state(program):
        return _STATE_S
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
    known_s = None
    if module := module_of(program):  # it takes as long as the program of that name
        known_s = _listed_s(module.name, module.key)
    if known_s is None:
        known_s = _listed_s(program.name, program.key)
    if known_s is not None and prints_a_plan(program):
        return min(known_s, _PLAN_S)
    return _DETACH_S if known_s == ENDLESS_S and detaches(program) else known_s


def _listed_s(name: str, key: str) -> float | None:
    """Look up the key, then words such as `test` or `install` behind the name, then the name."""
    if alias := _ALIASES.get(name):
        name, key = alias.partition(":")[0], alias + key.removeprefix(name)
    known_s = _BY_KEY.get(key)
    if known_s is not None:
        return known_s
    rest = key.partition(":")[2]
    own = behind_verb(name, key)
    by_words_s = _by_words_s(name, own)
    if not by_words_s and own != rest:  # then what precedes it: `gh:run` of `gh:run:view`
        known_s = _BY_KEY.get(key.removesuffix(f":{own}"))
        if known_s is not None:
            return known_s
        by_words_s = _by_words_s(name, rest)
    by_name_s = _BY_NAME.get(name)
    if not by_words_s or by_name_s is None:
        return by_words_s or by_name_s
    # `playwright test` takes what playwright takes, `flutter doctor` the time that flutter starts
    return max(by_words_s, by_name_s if by_words_s >= _LASTING_S else min(by_name_s, _LASTING_S))


def _by_words_s(name: str, rest: str) -> float:
    """Look up the words of a subcommand, and of the name of a project's own script or task."""
    is_script = name.startswith("./") or name.endswith(_SCRIPT_ENDINGS)
    is_runner = name in _TASK_RUNNERS or name in RUNS_TASKS
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


def sleep_s(program: Program) -> float | None:
    """Return the seconds that a `sleep` waits, 0.01 to 3600; None if its text does not say."""
    waits = [duration_s(word) for word in program.argv[1:]]
    known = [wait for wait in waits if wait is not None]
    if not waits or len(known) < len(waits):
        return None
    return min(max(0.01, sum(known)), MAX_WAIT_S)


def ping_s(program: Program) -> float:
    """Return a second per gap between `-c` packets; without `-c`, until `-w` or for ever."""
    options = {"-i": 1.0, "-w": ENDLESS_S}
    for word, after in pairwise(program.argv):
        value = duration_s(word[2:] or after)
        if value is not None and word[:2] in ("-c", "-i", "-n", "-w"):
            options[word[:2].replace("n", "c")] = value  # `-n 5` on Windows
    if "-c" not in options:
        return min(options["-w"], MAX_WAIT_S)
    return min((options["-c"] - 1) * options["-i"] + 0.1, MAX_WAIT_S)


def runs_until_stopped(program: Program) -> bool:
    """True for a watcher, a follower or a server, unless an option sends it to the background."""
    words = program.argv
    if program.key in _RUNS_IMAGES and not (program.is_runner or detaches(program)):
        images = {word.rsplit("/", 1)[-1].partition(":")[0] for word in words[2:]}
        return not (_PUBLISHES.isdisjoint(words) and images.isdisjoint(_SERVER_IMAGES))
    if program.name in _ENDLESS_NAMES:
        ends = _find(_UNTIL_STOPPED, program)
        if ends is not None:
            return not (_has_letter(words, ends) or not _END_FLAGS.isdisjoint(words))
        follows = _find(_FOLLOWS, program)
        if follows is not None and (
            _has_letter(words, follows) or any(word[:8] == "--follow" for word in words)
        ):
            return True
    return not _WATCH_FLAGS.isdisjoint(words)


def waits_for_state(program: Program) -> bool:
    """True if it waits until something elsewhere is ready: `kubectl wait`, `aws ec2 wait x`."""
    found = _WAITS.keys() & program.argv[1:12]
    return bool(found) and any(_WAITS[word] & {program.name, program.key} for word in found)


def waits_for_input(program: Program) -> bool:
    """True if it reads a standard input that the text does not provide.

    It then ends at once where that input is closed, at the call's time-out on a terminal.
    """
    if program.has_input or program.name not in _READS_INPUT:
        return False
    return program.name == "read" or all(word[:1] == "-" for word in program.argv[1:])


def mode_of(program: Program) -> str:
    """Return how its run differs from the usual ones of the same program; empty if it does not.

    The usual runs say nothing of such a run, nor it of them.
    """
    if is_question(program):
        return "question "
    if program.is_endless or runs_until_stopped(program):
        return "endless "
    if detaches(program):
        return "detached "
    if waits_for_state(program):
        return "waiting "
    return "plan " if prints_a_plan(program) else ""


def is_question(program: Program) -> bool:
    """True if it only prints its help or version, or checks a script: `bash -n x.sh`.

    A version followed by a word is an argument: `helm install x --version 1.2`.
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
    if program.name in TAKES_OPERANDS:
        return False
    name, *subcommands = program.key.split(":")
    if name not in RUNS_TASKS and program.key.endswith(_PASSES_ON):
        words = words[:2]
    elif not _ANSWERS.isdisjoint(subcommands[:2]) and "run" not in subcommands:
        return True
    return any(
        word in _HELP or (word in _VERSION and after[:1] == "-")
        for word, after in pairwise((*words, "-"))
    )


def detaches(program: Program) -> bool:
    """True if it sends itself to the background: `redis-server --daemonize yes`."""
    words = program.argv[1:]
    letters = _find(_DETACHES, program)
    if letters and _has_letter(words, letters):
        return True
    return any(
        word[:2] == "--" and _DETACHED.fullmatch(word) and after not in _NO
        for word, after in pairwise((*words, ""))
    )


def prints_a_plan(program: Program) -> bool:
    """True if it only prints what it would do: `pytest --collect-only`, `make -n`."""
    words = program.argv[1:]
    is_dry_make = program.name == "make" and "-n" in words
    return is_dry_make or any(word[:2] == "--" and _PLANS.fullmatch(word) for word in words)


def _find(table: dict[str, str], program: Program) -> str | None:
    return table.get(program.name, table.get(program.key))


def _has_letter(words: tuple[str, ...], letters: str) -> bool:
    """True if one of these letters is an option, alone or in a cluster such as `-dit`."""
    for word in words:
        cluster = _LETTERS.fullmatch(word) if word[:1] == "-" else None
        if cluster and not set(letters).isdisjoint(cluster[1]):
            return True
    return False
