"""Asks rules that somebody else wrote, and takes another answer where theirs cannot be used.

An exception, an answer of another form and a late answer are faults. A late answer is used all the
same: it is known by then, and a busy machine can make any answer late. Knows nothing of what is
asked: the guards of policies and of predictors do.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

MAX_ANSWER_S = 0.1
"""A policy that takes longer for one answer stalls every request of the engine."""
MAX_FAULTS, AMONG_ANSWERS = 20, 10_000
"""With this number of faults among this number of answers the rules are not asked any more."""

Answer = TypeVar("Answer")


class UnusableAnswerError(Exception):
    """An answer of another form, or a late one."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A question that was not answered as it must be."""

    question: str
    error: BaseException
    is_late: bool
    """The answer came after more than MAX_ANSWER_S, and was used."""
    is_last: bool
    """The rules are switched off: they are not asked any more."""


FaultReport = Callable[[Fault], None]


class AnswerGuard:
    """Guards rules whose faults cost them one answer each, and after MAX_FAULTS all further ones.

    A subclass has the methods of the rules, and asks for each answer by `_asked`.
    """

    max_answer_s = MAX_ANSWER_S
    """A later answer is a fault."""

    def __init__(self) -> None:
        self.num_faults = 0
        self.is_off = False
        """The rules are not asked any more."""
        self._num_answers = 0
        self._faults_at: deque[int] = deque(maxlen=MAX_FAULTS)
        self._report: FaultReport = lambda fault: None

    def watch(self, report: FaultReport) -> None:
        """Have each fault reported from now on, in the thread that asked."""
        self._report = report

    def _stand_in(self, question: str) -> Callable[..., Any]:
        """The method that answers a question in place of the rules."""
        raise NotImplementedError

    def _asked(
        self,
        question: str,
        method: Callable[..., Answer],
        args: tuple[Any, ...],
        is_usable: Callable[[Answer], bool] | None,
        **options: Any,
    ) -> Answer:
        """The answer of the rules' `method`, or that of the question's stand-in."""
        if not self.is_off:
            self._num_answers += 1
            began_s = time.perf_counter()
            try:
                answer = method(*args, **options)
                if is_usable is not None and not is_usable(answer):
                    raise UnusableAnswerError(f"{question} answered {answer!r:.200}")
            except Exception as error:
                self._fault(question, error)
            else:
                elapsed_s = time.perf_counter() - began_s
                if elapsed_s > self.max_answer_s:
                    late = f"{question} took {elapsed_s:.3f} s to answer"
                    self._fault(question, UnusableAnswerError(late), is_late=True)
                return answer
        other: Answer = self._stand_in(question)(*args, **options)
        return other

    def _fault(self, question: str, error: BaseException, *, is_late: bool = False) -> None:
        self.num_faults += 1
        self._faults_at.append(self._num_answers)
        if len(self._faults_at) == MAX_FAULTS:
            self.is_off = self._num_answers - self._faults_at[0] <= AMONG_ANSWERS
        self._report(Fault(question, error, is_late, self.is_off))
