"""The state of the shell that runs a command: programs so far, loops, functions, background jobs.

The walk over the syntax tree in `analysis` reports where loops, pipes and jobs begin and end; this
module knows nothing of syntax.
"""

from __future__ import annotations

import re
from dataclasses import replace

from agentkv.commands.prefixes import tighter
from agentkv.commands.program import (
    SHOWN_PROGRAMS,
    TAKES_OPERANDS,
    Program,
    base_name,
    key_and_code,
    program_name,
)
from agentkv.commands.quantities import MAX_ROUNDS, own_limit_s

MAX_PROGRAMS = 32
_ENDS_SHELL = frozenset({"exit", "return"})
_KILLERS = frozenset({"kill", "killall", "pkill"})
_MAX_VARIABLES, _MAX_VALUE_WORDS = 32, 8
_PROGRAM_VARIABLE = re.compile(
    r"\$(?:(?P<name>\w+)|\{(?P<braced>\w+)(?:\[@\]|:?-(?P<default>[^}]*))?\})|%(?P<of_cmd>\w+)%"
)
_NO_PROGRAM = re.compile(r"\$env:\w+ ?=|\$(?P<set>\w+) =|\$\w+ -(?:eq|ne|[gl][et]|i?match|i?like) ")
_WHICH = re.compile(r"(?:\$\(|`)\s*(?:which|command -v|type -p)\s+([\w./-]{1,64})[^)`]*[)`]")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_LAST = frozenset({"$!", "${!}"})
_NO_SIGNAL = frozenset({"-0", "-l", "-L"})


class ProgramList:
    """At most MAX_PROGRAMS programs in the order written."""

    def __init__(self) -> None:
        self.programs: list[Program] = []
        self.is_piped = False
        self.loop_depth = 0
        self.rounds: int | None = 1
        """Product of the rounds of all open loops; None if one of them is unknown."""
        self.is_left = False
        """Whether the innermost loop contains a `break`, an `exit` or a `return`."""
        self.jobs = BackgroundJobs()
        self._functions: dict[str, tuple[Program, ...]] = {}
        self._variables: dict[str, tuple[str, ...]] = {}

    def append(self, words: tuple[str, ...]) -> None:
        """Add the program that these words run."""
        name = program_name(words[0])
        argv = (name, *words[1:])
        self.is_left |= name == "break" or name in _ENDS_SHELL
        if name == "wait":
            awaited = self.jobs.awaited(argv)
            for index, program in enumerate(self.programs):
                if program.job in awaited:
                    self.change(index, index + 1, is_background=False)
        elif name in _KILLERS:
            self.jobs.end(argv)
        elif name == "set":  # cmd's `set PY=python`; an option of bash has no value
            self.assign(*" ".join(words[1:]).partition("=")[::2])
        key, code = key_and_code(name, argv)
        limit_s = own_limit_s(name, key, argv)
        self.programs.append(
            Program(
                name,
                key,
                argv,
                None if limit_s is None or self.rounds is None else limit_s * self.rounds,
                is_in_loop=self.loop_depth > 0,
                rounds=self.rounds,
                is_piped=self.is_piped,
                has_input=self.is_piped,
                code=code,
            )
        )

    def assign(self, name: str, value: str) -> None:
        """Note the words of a variable that may name a program; others are forgotten."""
        if found := _WHICH.fullmatch(value):
            value = found[1]
        words = self.expanded(tuple(value.strip("()\"'").split()[:_MAX_VALUE_WORDS]))
        self._variables.pop(name, None)
        if words and len(self._variables) < _MAX_VARIABLES and words[0][:1] not in "$`":
            self._variables[name] = words

    def expanded(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """These words with their first one expanded, if it is a variable whose value is known.

        Else its default counts, or a name that says what it holds: `$PYTHON`, `${CC:-gcc}`, `%PY%`.
        PowerShell's `$name = PROGRAM` is that program; a value or a comparison runs none.
        """
        if words and words[0][:1] == "$" and (found := _NO_PROGRAM.match(" ".join(words))):
            if found["set"]:
                self.assign(found["set"], " ".join(words[2:]))
            return words[2:] if found["set"] and len(words) > 3 else ()
        found = _PROGRAM_VARIABLE.fullmatch(words[0]) if words else None
        if found is None:
            return words
        name = found["name"] or found["braced"] or found["of_cmd"]
        own = self._variables.get(name) or tuple((found["default"] or "").split())
        if not own and (guess := base_name(name.lower())) in SHOWN_PROGRAMS - TAKES_OPERANDS:
            own = (guess,)
        return (*own, *words[1:]) if own else words

    def define(self, function: str, first: int) -> None:
        """Turn the programs from `first` on into a function, which runs when it is called."""
        self._functions[function] = tuple(self.programs[first:])
        del self.programs[first:]

    def call(self, function: str) -> bool:
        """Add the programs of a function; False if none of that name is defined."""
        if function not in self._functions:
            return False
        self.programs += [
            replace(
                program,
                is_in_loop=program.is_in_loop or self.loop_depth > 0,
                rounds=product(program.rounds, self.rounds),
                has_input=program.has_input or self.is_piped,
            )
            for program in self._functions[function][: MAX_PROGRAMS - len(self.programs)]
        ]
        return True

    def leaves_shell_from(self, first: int) -> bool:
        """Whether an `exit` or `return` is among the programs from `first` on."""
        return any(program.name in _ENDS_SHELL for program in self.programs[first:])

    def start_job_from(self, first: int) -> None:
        """Move the programs from `first` on into a background job.

        A loop starts the jobs of all its rounds at once, so its rounds do not multiply theirs.
        """
        self.jobs.num_started += 1
        for index, program in enumerate(self.programs[first:], first):
            own, around = program.rounds, self.rounds
            rounds = 1 if own is None or not around else max(1, own // around)
            job = self.jobs.num_started
            self.change(index, index + 1, is_background=True, job=job, rounds=rounds)

    def limit_from(self, first: int, timeout_s: float) -> None:
        """Limit the programs from `first` on to `timeout_s` together, in each round."""
        limit_s = None if self.rounds is None else timeout_s * self.rounds
        for index, program in enumerate(self.programs[first:], first):
            self.change(index, index + 1, timeout_s=tighter(program.timeout_s, limit_s))

    def change(self, first: int, end: int | None = None, **changes: object) -> None:
        """Change fields of the programs from `first` up to `end`."""
        first = max(first, 0)
        self.programs[first:end] = [
            replace(program, **changes)  # type: ignore[arg-type]
            for program in self.programs[first:end]
        ]


def product(rounds: int | None, others: int | None) -> int | None:
    """Rounds of a loop in a loop; None if either is not known."""
    return None if rounds is None or others is None else min(rounds * others, MAX_ROUNDS)


class BackgroundJobs:
    """The jobs started with `&`, numbered from 1 as the shell does."""

    def __init__(self) -> None:
        self.num_started = 0
        self._by_variable: dict[str, int] = {}
        self._ended: set[int] = set()

    def assign(self, assignment: str) -> None:
        """Read an assignment: after `PID=$!` the variable names the job started last."""
        name, _, value = assignment.partition("=")
        if value.strip('"') in _LAST:
            self._by_variable[name] = self.num_started

    def end(self, argv: tuple[str, ...]) -> None:
        """Read a `kill` or the like: the jobs it ends are not awaited later."""
        if _NO_SIGNAL.isdisjoint(argv):
            self._ended |= self._named(argv[1:] if argv[0] == "kill" else ())

    def awaited(self, argv: tuple[str, ...]) -> set[int]:
        """The numbers of the jobs that a `wait` awaits."""
        return self._named(argv[1:]) - self._ended

    def _named(self, words: tuple[str, ...]) -> set[int]:
        """The jobs that these words name; all if they name none or an unknown one."""
        numbers = [self._number(word) for word in words if word[:1] != "-"]
        if not numbers or None in numbers:
            return set(range(1, self.num_started + 1))
        return {number for number in numbers if number is not None}

    def _number(self, word: str) -> int | None:
        word = word.strip('"')
        if word in _LAST or word in ("%%", "%+", "%"):
            return self.num_started
        if word[:1] == "%":
            return int(word[1:]) if word[1:].isdecimal() and len(word) < 5 else None
        match = _VARIABLE.fullmatch(word)
        return self._by_variable.get(match[1]) if match else None
