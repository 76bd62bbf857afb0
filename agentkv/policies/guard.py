"""Asks a policy, and takes stock vLLM's answer wherever the policy's own cannot be used.

The plugin wraps every policy in one, so that no policy can stop the engine: an exception, an answer
of another form and a late answer are faults. A late answer is used all the same: it is known by
then, and a busy machine can make any answer late. Knows nothing of vLLM.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from agentkv.durations import Prediction
from agentkv.durations.ttl import TTL

from .base import AdmissionRequest, AllocationRequest, EngineView, Policy, Rank
from .costs import RestoreCost
from .jobs import Decision, Job, Turn
from .pins import Pin

MAX_ANSWER_S = 0.1
"""A policy that takes longer for one answer stalls every request of the engine."""
MAX_FAULTS, AMONG_ANSWERS = 20, 10_000
"""With this number of faults among this number of answers a policy is not asked any more."""

Answer = TypeVar("Answer")
FaultReport = Callable[[str, BaseException], None]
"""Is given the question and what was wrong with the answer."""


class UnusableAnswerError(Exception):
    """A policy gave an answer of another form, or a late one."""


class GuardedPolicy(Policy):
    """A policy whose faults cost it one decision each, and after MAX_FAULTS all further ones."""

    def __init__(self, rules: Policy) -> None:
        """`rules` are asked as long as they answer."""
        super().__init__(rules.settings, rules.pool_tokens)
        self.rules = rules
        self.pressure = rules.pressure
        self.learned = rules.learned
        self.num_faults = 0
        self.is_off = False
        """The policy is not asked any more."""
        self._num_answers = 0
        self._faults_at: deque[int] = deque(maxlen=MAX_FAULTS)
        self.uses_predictions = rules.uses_predictions
        self.allows_partial_eviction = rules.allows_partial_eviction
        self.has_admission_control = rules.has_admission_control
        self.has_gate = rules.has_gate
        self.holds_parts = rules.holds_parts
        self.starved_rank = rules.starved_rank
        self.max_wait_s = rules.max_wait_s
        self.tick_s = rules.tick_s
        self._report: FaultReport = lambda question, error: None

    def watch(self, report: FaultReport) -> None:
        """Have each fault reported from now on."""
        self._report = report

    def bind(self, engine: EngineView) -> None:
        super().bind(engine)
        self._asked("bind", self.rules.bind, (engine,), None)

    def _asked(
        self,
        question: str,
        method: Callable[..., Answer],
        args: tuple[Any, ...],
        is_usable: Callable[[Answer], bool] | None,
        **options: Any,
    ) -> Answer:
        """The policy's answer, or that of the method of the same name of `Policy`."""
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
                if elapsed_s > MAX_ANSWER_S:
                    late = f"{question} took {elapsed_s:.3f} s to answer"
                    self._fault(question, UnusableAnswerError(late))
                return answer
        stock: Answer = getattr(super(), question)(*args, **options)
        return stock

    def _fault(self, question: str, error: BaseException) -> None:
        self.num_faults += 1
        self._faults_at.append(self._num_answers)
        if len(self._faults_at) == MAX_FAULTS:
            self.is_off = self._num_answers - self._faults_at[0] <= AMONG_ANSWERS
        self._report(question, error)

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        return self._asked("undecided_ttl", self.rules.undecided_ttl, (cost,), _is_ttl)

    def decide(
        self, command: str | None, cost: RestoreCost, prediction: Prediction | None = None
    ) -> Decision:
        return self._asked("decide", self.rules.decide, (command, cost, prediction), _is_decision)

    def held_tokens(self, cost: RestoreCost) -> float:
        return self._asked("held_tokens", self.rules.held_tokens, (cost,), _is_amount)

    def pins_that_yield(
        self, pins: Sequence[Pin[Any]], request: AllocationRequest
    ) -> Sequence[Pin[Any]]:
        def is_usable(answer: Sequence[Pin[Any]]) -> bool:
            known, taken = set(map(id, pins)), set(map(id, answer))
            is_complete = taken == known if request.runs_alone else taken <= known
            return is_complete and len(taken) == len(answer)

        args = (pins, request)
        return self._asked("pins_that_yield", self.rules.pins_that_yield, args, is_usable)

    def rank(self, turn: Turn, *, is_preempted: bool, is_pinned: bool) -> Rank:
        options = {"is_preempted": is_preempted, "is_pinned": is_pinned}
        return self._asked("rank", self.rules.rank, (turn,), self._is_rank, **options)

    def victim_rank(self, turn: Turn) -> Rank:
        return self._asked("victim_rank", self.rules.victim_rank, (turn,), self._is_rank)

    def sorts_running(self) -> bool:
        return self._asked("sorts_running", self.rules.sorts_running, (), _is_flag)

    def max_overtakes(self, num_turns: float) -> float:
        return self._asked("max_overtakes", self.rules.max_overtakes, (num_turns,), _is_amount)

    def why_hold_back(self, request: AdmissionRequest) -> str | None:
        return self._asked("why_hold_back", self.rules.why_hold_back, (request,), _is_reason)

    def why_wait(self, turn: Turn) -> str | None:
        return self._asked("why_wait", self.rules.why_wait, (turn,), _is_reason)

    def pressure_s(self, cost: RestoreCost) -> float:
        return self._asked("pressure_s", self.rules.pressure_s, (cost,), _is_amount)

    def turn_finished(self, turn: Turn, served_s: float) -> None:
        self._asked("turn_finished", self.rules.turn_finished, (turn, served_s), None)

    def job_ended(self, job: Job) -> None:
        self._asked("job_ended", self.rules.job_ended, (job,), None)

    def tick(self) -> bool:
        return self._asked("tick", self.rules.tick, (), _is_flag)

    def _is_rank(self, answer: Rank) -> bool:
        """Three numbers that sort behind the place of a starved request."""
        is_rank = type(answer) is tuple and len(answer) == 3
        return is_rank and answer > self.starved_rank and not any(part != part for part in answer)


def _is_ttl(answer: TTL) -> bool:
    return isinstance(answer, TTL) and _is_amount(answer.seconds) and answer.seconds != math.inf


def _is_decision(answer: Decision) -> bool:
    return isinstance(answer, Decision) and _is_ttl(answer.ttl)


def _is_flag(answer: bool) -> bool:
    return isinstance(answer, bool)


def _is_amount(answer: float) -> bool:
    return isinstance(answer, int | float) and answer >= 0


def _is_reason(answer: str | None) -> bool:
    return answer is None or isinstance(answer, str)
