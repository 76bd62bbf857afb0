"""Which background jobs of a shell a `wait` awaits, and which were ended before."""

from __future__ import annotations

import re

_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_LAST = frozenset({"$!", "${!}"})
_NO_SIGNAL = frozenset({"-0", "-l", "-L"})


class BackgroundJobs:
    """The jobs started with `&`, numbered from 1 as the shell does."""

    def __init__(self) -> None:
        self._num_started = 0
        self._by_variable: dict[str, int] = {}
        self._ended: set[int] = set()

    def start(self) -> int:
        """The number of a new job."""
        self._num_started += 1
        return self._num_started

    def assign(self, assignment: str) -> None:
        """Note `PID=$!`: the variable now names the job started last."""
        name, _, value = assignment.partition("=")
        if value.strip('"') in _LAST:
            self._by_variable[name] = self._num_started

    def end(self, argv: tuple[str, ...]) -> None:
        """Note a `kill` or its like: what it ends need not be awaited."""
        if _NO_SIGNAL.isdisjoint(argv):
            self._ended |= self._named(argv[1:] if argv[0] == "kill" else ())

    def awaited(self, argv: tuple[str, ...]) -> set[int]:
        """The numbers of the jobs whose end this `wait` awaits."""
        return self._named(argv[1:]) - self._ended

    def _named(self, words: tuple[str, ...]) -> set[int]:
        """The jobs that these words name; all if they name none, or one that is not known."""
        numbers = [self._number(word) for word in words if word[:1] != "-"]
        if not numbers or None in numbers:
            return set(range(1, self._num_started + 1))
        return {number for number in numbers if number is not None}

    def _number(self, word: str) -> int | None:
        word = word.strip('"')
        if word in _LAST or word in ("%%", "%+", "%"):
            return self._num_started
        if word[:1] == "%":
            return int(word[1:]) if word[1:].isdecimal() and len(word) < 5 else None
        match = _VARIABLE.fullmatch(word)
        return self._by_variable.get(match[1]) if match else None
