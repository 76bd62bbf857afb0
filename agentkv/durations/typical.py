"""How long well-known programs usually take: what is known of a command before it was ever run.

The figures are in `typical.toml`. The first match counts: the program's key, then words such as
`test` or `install` in its subcommand, then its name.
"""

from __future__ import annotations

import re
import tomllib
from importlib import resources

from agentkv.commands import Program
from agentkv.commands.prefixes import duration_s

UNKNOWN_S = 1.0
"""A program nobody knows: many are small tools, some run for long; neither fast nor slow."""

_WORD_ENDS = re.compile(r"[:._/-]+")
_SCRIPT_ENDINGS = (".sh", ".py", ".js", ".rb", ".pl")
_QUESTION_S = 0.2
_QUESTIONS = frozenset({"--help", "--version", "-V", "help"})
_FOLLOWS_S = 60.0
"""A server, a watcher or a `tail -f` runs until it is stopped, mostly by the call's time-out."""
_FOLLOWERS = frozenset({"tail", "journalctl", "docker:logs", "docker:compose:logs", "kubectl:logs"})
_FOLLOW_FLAGS = frozenset({"-f", "-F", "--follow", "-fn", "-xef"})
_SEARCHES = frozenset({"find", "grep", "rg", "ag", "du", "fd"})
_WHOLE_DISK = frozenset({"/", "/*", "/usr", "~", "$HOME"})
_WHOLE_DISK_S = 5.0
_LASTING_S = 1.0
_MAX_WAIT_S = 3600.0


def _read_tables() -> list[dict[str, float]]:
    text = resources.files("agentkv.durations").joinpath("typical.toml").read_text("utf-8")
    tables = tomllib.loads(text)
    return [
        {name: float(seconds) for seconds, names in tables[kind].items() for name in names.split()}
        for kind in ("key", "name", "word")
    ]


_BY_KEY, _BY_NAME, _BY_WORD = _read_tables()


def typical_s(program: Program) -> float | None:
    """Seconds this program usually takes; None where nothing of it is known."""
    if program.name == "sleep":
        return wait_s(program)
    if program.argv[1:] and not _QUESTIONS.isdisjoint(program.argv[1:3]):
        return _QUESTION_S
    is_follower = program.name in _FOLLOWERS or program.key in _FOLLOWERS
    if is_follower and not _FOLLOW_FLAGS.isdisjoint(program.argv):
        return _FOLLOWS_S
    if program.name in _SEARCHES and not _WHOLE_DISK.isdisjoint(program.argv):
        return _WHOLE_DISK_S
    known = _BY_KEY.get(program.key)
    if known is not None:
        return known
    told_s = max((_BY_WORD.get(word, 0.0) for word in _words_of(program)), default=0.0)
    by_name_s = _BY_NAME.get(program.name)
    if told_s >= _LASTING_S and by_name_s is not None:
        return max(told_s, by_name_s)  # `playwright test` takes what playwright takes
    return told_s or by_name_s


def wait_s(program: Program) -> float:
    """Seconds that a `sleep` waits, 0.01 to 3600."""
    waits = [duration_s(word) for word in program.argv[1:]]
    return min(max(0.01, sum(wait for wait in waits if wait is not None)), _MAX_WAIT_S)


def _words_of(program: Program) -> list[str]:
    """The words of the subcommand, and of the name of a project's own script."""
    name, _, rest = program.key.partition(":")
    is_script = name.startswith("./") or name.endswith(_SCRIPT_ENDINGS)
    return _WORD_ENDS.sub(" ", f"{name} {rest}" if is_script else rest).split()
