"""Asks a policy, and takes stock vLLM's answer wherever the policy's own cannot be used.

The plugin wraps every policy in one, so that no policy can stop the engine. Knows nothing of vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from agentkv.durations import Prediction
from agentkv.durations.ttl import TTL
from agentkv.guard import AnswerGuard

from .base import AdmissionRequest, AllocationRequest, EngineView, Policy, Rank
from .costs import RestoreCost
from .jobs import Decision, Job, Turn
from .pins import Pin


class GuardedPolicy(AnswerGuard, Policy):
    """A policy that answers as stock does where its rules fail, or have failed too often."""

    def __init__(self, rules: Policy) -> None:
        """`rules` are asked as long as they answer."""
        AnswerGuard.__init__(self)
        Policy.__init__(self, rules.settings, rules.pool_tokens)
        self.rules = rules
        self.pressure = rules.pressure
        self.learned = rules.learned
        self.uses_predictions = rules.uses_predictions
        self.allows_partial_eviction = rules.allows_partial_eviction
        self.has_admission_control = rules.has_admission_control
        self.has_gate = rules.has_gate
        self.holds_parts = rules.holds_parts
        self.limits_offloading = rules.limits_offloading
        self.starved_rank = rules.starved_rank
        self.max_wait_s = rules.max_wait_s
        self.tick_s = rules.tick_s

    def bind(self, engine: EngineView) -> None:
        super().bind(engine)
        self._asked("bind", self.rules.bind, (engine,), None)

    def _stand_in(self, question: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(super(), question)
        return method

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        return self._asked("undecided_ttl", self.rules.undecided_ttl, (cost,), _is_ttl)

    def decide(
        self, command: str | None, cost: RestoreCost, prediction: Prediction | None = None
    ) -> Decision:
        return self._asked("decide", self.rules.decide, (command, cost, prediction), _is_decision)

    def held_tokens(self, cost: RestoreCost) -> float:
        return self._asked("held_tokens", self.rules.held_tokens, (cost,), _is_amount)

    def offloaded_tokens(self, turn: Turn) -> float:
        return self._asked("offloaded_tokens", self.rules.offloaded_tokens, (turn,), _is_amount)

    def pins_that_yield(
        self, pins: Sequence[Pin[Any]], request: AllocationRequest
    ) -> Sequence[Pin[Any]]:
        def is_usable(answer: Sequence[Pin[Any]]) -> bool:
            if answer is pins:
                return True  # the usual answer, without a look at each pin
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
