"""Policies that each break one promise, and such a predictor, for `agentkv policy check`."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from typing import Any

from agentkv.policies import TTL, AllocationRequest, Pin, Policy, Rank, RestoreCost, Turn
from agentkv.predictors import CommandAnalysis, Prediction, Predictor


class Holds(Policy):
    """Holds every turn for five seconds, and breaks no promise."""

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        return TTL(5.0, "five seconds")


class CannotBeMade(Policy):
    """Fails before the server is up."""

    def __init__(self, *args: Any) -> None:
        raise RuntimeError("planted")


class Raises(Policy):
    """Divides by the seconds that the first turn of the engine was served."""

    def turn_finished(self, turn: Turn, served_s: float) -> None:
        raise ZeroDivisionError("planted")


class AnswersNonsense(Policy):
    """Ranks by something that cannot be ordered."""

    def rank(self, turn: Turn, *, is_preempted: bool, is_pinned: bool) -> Rank:
        return (math.nan, turn.order, 0)


class LoopsForever(Policy):
    """Never answers about a turn of the sub-agent."""

    def rank(self, turn: Turn, *, is_preempted: bool, is_pinned: bool) -> Rank:
        while turn.job.parent_job_id is not None:
            pass
        return super().rank(turn, is_preempted=is_preempted, is_pinned=is_pinned)


class AsksSomebodyElse(Policy):
    """Waits for 110 ms, as for a service on the network."""

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        time.sleep(0.11)
        return TTL(5.0, "five seconds")


class ForgetsToYield(Holds):
    """Never gives a pin up."""

    def pins_that_yield(
        self, pins: Sequence[Pin[Any]], request: AllocationRequest
    ) -> Sequence[Pin[Any]]:
        return []


class ServesTheNewestFirst(Policy):
    """Lets a turn wait as long as others arrive."""

    def rank(self, turn: Turn, *, is_preempted: bool, is_pinned: bool) -> Rank:
        return (2, -turn.order, 0)


class NeverOpensItsGate(Policy):
    """Lets no job return, with no limit to that."""

    max_wait_s = math.inf

    def why_wait(self, turn: Turn) -> str | None:
        return "closed"


class RollsDice(Policy):
    """Answers by a counter that outlives the engine."""

    count = itertools.count()

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        return TTL(5.0 + next(self.count), "by chance")


class LeaksThroughATier(Holds):
    """Takes a block off a pin, where a tier would load it back."""

    def rank(self, turn: Turn, *, is_preempted: bool, is_pinned: bool) -> Rank:
        for pin in self.engine.pins:
            if self.loads_back:
                pin.blocks = pin.blocks[:-1]
        return super().rank(turn, is_preempted=is_preempted, is_pinned=is_pinned)

    loads_back = False

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        self.loads_back = cost.load_s > 0
        return super().undecided_ttl(cost)


class FailsToPredict(Predictor):
    """Looks up each program in a table that has none."""

    def predict(self, command: CommandAnalysis) -> Prediction:
        seconds: dict[str, Prediction] = {}
        return seconds[command.text]


class PredictsForever(Predictor):
    """Never answers."""

    def predict(self, command: CommandAnalysis) -> Prediction:
        while True:
            pass
