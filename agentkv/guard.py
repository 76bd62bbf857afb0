"""Asks rules that somebody else wrote, and takes another answer where theirs cannot be used.

An exception, an answer of another form and a late answer are faults. A late answer is used all the
same: it is known by then, and a busy machine can make any answer late. The owner of the
rules has a table of checks, one a question.
"""

from __future__ import annotations

import dis
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

MAX_ANSWER_S = 0.1
"""A policy that takes longer for one answer stalls every request of the engine."""
MAX_FAULTS, AMONG_ANSWERS = 20, 10_000
"""With this number of faults among this number of answers the rules are not asked any more."""

Asked = TypeVar("Asked", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class AnswerCheck:
    """What an answer to one question must be."""

    kind: type | tuple[type, ...] = object
    is_usable: Callable[[Any, tuple[Any, ...]], bool] | None = None
    """Looks at an answer of that kind, and at the positional arguments of the question; None: any
    of that kind can be used."""


ANYTHING = AnswerCheck()


class UnusableAnswerError(Exception):
    """An answer of another form, or a late one."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A question that was not answered as it must be."""

    rules: str
    """Name of the class that was asked."""
    question: str
    error: BaseException
    is_late: bool
    """The answer came after more than MAX_ANSWER_S, and was used."""
    is_last: bool
    """The rules are switched off: they are not asked any more."""


FaultReport = Callable[[Fault], None]


class Guard:
    """Asks one object's methods; a fault costs one answer, MAX_FAULTS of them all further ones."""

    def __init__(
        self, rules: object, report: FaultReport, *, max_answer_s: float = MAX_ANSWER_S
    ) -> None:
        """`report` is given each fault, in the thread that asked."""
        self.num_faults = 0
        self.is_off = False
        """The rules are not asked any more."""
        self._name = type(rules).__name__
        self.report = report
        self.max_answer_s = max_answer_s
        """Seconds after which an answer is late, which is a fault."""
        self._num_answers = 0
        self._faults_at: deque[int] = deque(maxlen=MAX_FAULTS)

    def asking(
        self, question: str, method: Asked, stand_in: Asked, check: AnswerCheck = ANYTHING
    ) -> Asked:
        """A function that answers as `method` does, or else as `stand_in`. Costs one call more."""
        kind, is_usable = check.kind, check.is_usable
        clock = time.perf_counter

        def asked(*args: Any, **options: Any) -> Any:
            if self.is_off:
                return stand_in(*args, **options)
            self._num_answers += 1
            began_s = clock()
            try:
                answer = method(*args, **options)
                if not isinstance(answer, kind) or (
                    is_usable is not None and not is_usable(answer, args)
                ):
                    raise UnusableAnswerError(f"{question} answered {answer!r:.200}")
            except BaseException as error:
                if was_signalled(error):
                    raise
                self._fault(question, error)
                return stand_in(*args, **options)
            took_s = clock() - began_s
            if took_s > self.max_answer_s:
                late = f"{question} took {took_s:.3f} s to answer"
                self._fault(question, UnusableAnswerError(late), is_late=True)
            return answer

        return asked  # type: ignore[return-value]

    def _fault(self, question: str, error: BaseException, *, is_late: bool = False) -> None:
        self.num_faults += 1
        self._faults_at.append(self._num_answers)
        if len(self._faults_at) == MAX_FAULTS:
            self.is_off = self._num_answers - self._faults_at[0] <= AMONG_ANSWERS
        self.report(Fault(self._name, question, error, is_late, self.is_off))


def was_signalled(error: BaseException) -> bool:
    """True if an error came from a signal that ends this process: it hits the code that runs then.

    It came out of a handler of SIGINT or SIGTERM, or is a KeyboardInterrupt without a `raise`.
    """
    if isinstance(error, Exception):
        return False
    handlers = map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))
    codes = [getattr(handler, "__code__", None) for handler in handlers]
    last, trace = error.__traceback__, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        last, trace = trace, trace.tb_next
    return isinstance(error, KeyboardInterrupt) and not _is_raise(last)


def _is_raise(trace: TracebackType | None) -> bool:
    if trace is None:
        return False
    opcode = trace.tb_frame.f_code.co_code[trace.tb_lasti]
    return dis.opname[opcode] in ("RAISE_VARARGS", "RERAISE")
