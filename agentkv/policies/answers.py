"""Which answers of a policy can be used, and the guarded policy that the plugin asks.

Stock vLLM's answer stands in for one that cannot, so that no policy can stop the engine. Knows
nothing of vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from agentkv.durations.ttl import TTL
from agentkv.guard import ANYTHING, AnswerCheck, FaultReport, Guard

from .base import EngineView, Policy
from .jobs import Decision

Args = tuple[Any, ...]


def _is_ttl(answer: TTL, args: Args) -> bool:
    return isinstance(answer.seconds, int | float) and 0 <= answer.seconds < math.inf


def _is_decision(answer: Decision, args: Args) -> bool:
    return isinstance(answer.ttl, TTL) and _is_ttl(answer.ttl, args)


def _is_amount(answer: float, args: Args) -> bool:
    return answer >= 0


def _are_pins(answer: Any, args: Args) -> bool:
    """Return whether pins shown are given up, each once; all if nothing else could make room."""
    pins, request = args
    if answer is pins:
        return True  # the usual answer, without a look at each pin
    known, taken = set(map(id, pins)), set(map(id, answer))
    is_complete = taken == known if request.runs_alone else taken <= known
    return is_complete and len(taken) == len(answer)


_AMOUNT, _FLAG = AnswerCheck((int, float), _is_amount), AnswerCheck(bool)
_RANK, _REASON = AnswerCheck(tuple), AnswerCheck((str, type(None)))

CHECKS: Mapping[str, AnswerCheck] = {
    "undecided_ttl": AnswerCheck(TTL, _is_ttl),
    "decide": AnswerCheck(Decision, _is_decision),
    "held_tokens": _AMOUNT,
    "pins_that_yield": AnswerCheck(object, _are_pins),
    "rank": _RANK,
    "victim_rank": _RANK,
    "sorts_running": _FLAG,
    "max_overtakes": _AMOUNT,
    "why_hold_back": _REASON,
    "why_wait": _REASON,
    "pressure_s": _AMOUNT,
    "turn_finished": ANYTHING,
    "job_ended": ANYTHING,
    "tick": _FLAG,
}
"""The questions that a policy is asked while the engine runs, and what each answer must be."""

_FACTS = (
    "pressure",
    "learned",
    *(
        name
        for name, value in vars(Policy).items()
        if not (name.startswith("_") or callable(value))
    ),
)
"""What a policy says of itself, once."""


class GuardedPolicy(Policy):
    """Answers as a policy does, and as stock does where its rules fail, or have failed too often.

    A question that the rules do not answer in their own way is not put to them.
    """

    def __init__(self, rules: Policy, report: FaultReport = lambda fault: None) -> None:
        """`rules` are asked as long as they answer; `report` is given each fault."""
        super().__init__(rules.settings, rules.pool_tokens)
        self.guard = Guard(rules, report)
        self.rules = rules
        for fact in _FACTS:
            setattr(self, fact, getattr(rules, fact))
        for question, check in CHECKS.items():
            if check is _RANK:
                check = AnswerCheck(tuple, self._is_rank)
            is_own = getattr(type(rules), question) is not getattr(Policy, question)
            if is_own or question in vars(rules):
                method, stand_in = getattr(rules, question), getattr(self, question)
                setattr(self, question, self.guard.asking(question, method, stand_in, check))

    def bind(self, engine: EngineView) -> None:
        super().bind(engine)
        self.guard.asking("bind", self.rules.bind, super().bind)(engine)

    def _is_rank(self, answer: tuple[Any, ...], args: Args) -> bool:
        """Return whether these are three numbers that sort behind a starved request's."""
        least, most = -math.inf, math.inf
        return (
            len(answer) == 3
            and least <= answer[0] <= most  # raises unless it is a number; NaN is not within
            and least <= answer[1] <= most
            and least <= answer[2] <= most
            and answer > self.starved_rank
        )
