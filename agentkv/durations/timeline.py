"""When the programs of a command usually end: their seconds, one after another or side by side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from agentkv.commands import CommandAnalysis, Program
from agentkv.durations.modes import mode_of
from agentkv.durations.typical import UNKNOWN_S, typical_s
from agentkv.durations.waits import ENDLESS_S

LASTING_S = 1.0
SHORT_S = 0.02
_SHORT_ROUND_S = 0.002
"""A further round of what takes no time worth telling: a builtin, a small tool."""
_START_S = 0.1
"""Of a run no longer than this most is what comes once: its start, and the trip to the shell."""
_UNKNOWN_ROUNDS = 3
_UNKNOWN_WAIT_S = 5.0
"""Who waits at all mostly waits for 1 to 60 s."""


class Timed(NamedTuple):
    """A program that the shell waits for."""

    program: Program
    seconds: float
    """Over all its rounds, at most its time-out."""
    once_s: float
    """In a single round."""
    is_known: bool
    """Whether anything is known of it beforehand."""

    @property
    def is_sleep(self) -> bool:
        return self.program.name == "sleep"

    @property
    def is_open(self) -> bool:
        """A loop that sleeps between its rounds waits for something: who knows for how long."""
        return self.is_sleep and self.program.rounds is None


def timed(command: CommandAnalysis) -> list[Timed]:
    """The programs that the shell waits for, with what they usually take."""
    programs = [program for program in command.programs if not program.is_background]
    has_jobs = any(program.job is not None for program in command.programs)
    times = []
    for program, after in pairwise((*programs, None)):
        assert program is not None
        once_s = typical_s(program)
        if program.name == "wait" and not has_jobs:
            once_s = None  # it awaits a job of an earlier command
        elif program.is_endless or (program.name == "yes" and not (after and after.is_piped)):
            once_s = ENDLESS_S
        times.append(_timed(program, once_s))
    return times


def end_s(times: Sequence[Timed]) -> float:
    """When the last of them ends; a background job runs beside what follows it."""
    now_s = 0.0
    ends_s: dict[int, float] = {}
    for each in times:
        job = each.program.job
        if job is None:
            now_s += each.seconds
        else:
            ends_s[job] = ends_s.get(job, now_s) + each.seconds
    return max(now_s, *ends_s.values(), 0.0)


def repeats(times: Sequence[Timed], main: Program) -> float:
    """How many times as long as one run of `main` all runs of its program take, at least 1.

    1 of what takes no time worth telling: its runs are as good as one. What the text does not say
    is not guessed at: how often a loop runs that is left, and which of two alternatives.
    """
    own = [
        each._replace(seconds=each.once_s) if each.program.rounds is None else each
        for each in times
        if each.program is main or _is_another_run(each.program, main)
    ]
    once_s = next(each.once_s for each in own if each.program is main)
    return max(1.0, end_s(own) / once_s) if once_s > _START_S else 1.0


def _is_another_run(program: Program, main: Program) -> bool:
    if program.key != main.key or program.is_piped or program.is_alternative:
        return False
    return mode_of(program) == mode_of(main)


def sleeps_s(times: Sequence[Timed]) -> float:
    """The part of it that is slept as long as the text says."""
    return end_s([each for each in times if each.is_sleep and each.is_known])


def limit_s(times: Sequence[Timed], main: Program | None) -> float | None:
    """The main program's time-out and the time of what that does not limit, if that is sure."""
    if main is None or main.timeout_s is None:
        return None
    beside = [each for each in times if each.program.timeout_s != main.timeout_s]
    if any(each.seconds >= LASTING_S and not each.is_sleep for each in beside):
        return None
    return main.timeout_s + sum(each.seconds for each in beside)


def _timed(program: Program, once_s: float | None) -> Timed:
    is_known = once_s is not None
    if once_s is None:
        once_s = _UNKNOWN_WAIT_S if program.name == "sleep" else UNKNOWN_S
    rounds = _UNKNOWN_ROUNDS if program.rounds is None else program.rounds
    is_short = once_s <= SHORT_S and program.name != "sleep"
    further_s = _SHORT_ROUND_S if is_short else once_s
    seconds = once_s * min(rounds, 1) + further_s * max(rounds - 1, 0)
    if program.is_endless:
        seconds = once_s
    if program.timeout_s is not None:
        seconds, once_s = min(seconds, program.timeout_s), min(once_s, program.timeout_s)
    return Timed(program, seconds, once_s, is_known)
