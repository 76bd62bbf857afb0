"""Programs that wait: for a time that their words say, for a person, or until they are stopped."""

from __future__ import annotations

import re

from agentkv.commands import Program
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
