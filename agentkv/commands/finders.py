"""What `find -exec` and `fd -x` run on the files that they find."""

from __future__ import annotations

from collections.abc import Iterator

FINDERS = frozenset({"find", "fd", "fdfind"})
_ONE_BY_ONE = frozenset({"-exec", "-execdir", "-ok", "-okdir", "-x", "--exec"})
_TOGETHER = frozenset({"-X", "--exec-batch"})
_EXECUTING = _ONE_BY_ONE | _TOGETHER
_MAX_EXECUTED = 8
_MAX_WORDS = 64


def executed(argv: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], bool]]:
    """The words of each program that a search runs, and whether it runs once for each file."""
    start = 1
    for _ in range(_MAX_EXECUTED):
        while start < len(argv) and argv[start] not in _EXECUTING:
            start += 1
        end = start + 1
        while end < len(argv) and argv[end] != ";" and argv[end - 1 : end + 1] != ("{}", "+"):
            end += 1
        if end <= start + 1:
            return
        is_together = argv[start] in _TOGETHER or argv[end : end + 1] == ("+",)
        yield argv[start + 1 : min(end, start + 1 + _MAX_WORDS)], not is_together
        start = end + 1
