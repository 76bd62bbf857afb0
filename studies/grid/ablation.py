"""The `agentkv` policy without one of its parts each, to see what each is worth.

Each is a policy by the name `studies/grid/ablation.py:CLASS`; tests leave several out at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentkv.durations import Prediction
from agentkv.policies.agentkv import AgentKVPolicy
from agentkv.policies.base import UNPINNED, AdmissionRequest, AllocationRequest, Policy, Rank
from agentkv.policies.costs import RestoreCost
from agentkv.policies.jobs import Decision, Turn
from agentkv.policies.pins import Pin
from agentkv.policies.settings import Settings


class WithoutSwitch(AgentKVPolicy):
    """Rules 3 and 4 hold at all times, not only under memory pressure."""

    def __init__(self, settings: Settings, pool_tokens: int) -> None:
        super().__init__(settings, pool_tokens)
        self.pressure.rise(0.0, math.inf)


class WithoutOrder(AgentKVPolicy):
    """Stock's order and stock's victims."""

    def rank(self, turn: Turn, *, is_preempted: bool, is_pinned: bool) -> Rank:
        return (UNPINNED, turn.order, 0)

    def sorts_running(self) -> bool:
        return False


class WithoutProtection(AgentKVPolicy):
    """Every turn takes idle KV from all jobs."""

    def pins_that_yield(
        self, pins: Sequence[Pin[Any]], request: AllocationRequest
    ) -> Sequence[Pin[Any]]:
        return pins


class WithoutAdmission(AgentKVPolicy):
    """New jobs are admitted at once."""

    has_admission_control = False


class WithoutBalance(AgentKVPolicy):
    """Idle KV counts in full when a new job asks for memory."""

    def why_hold_back(self, request: AdmissionRequest) -> str | None:
        return super().why_hold_back(replace(request, idle_kv_weight=1.0))


class WithoutTails(AgentKVPolicy):
    """A pin that yields gives up all its blocks."""

    allows_partial_eviction = False


class WithoutPrediction(AgentKVPolicy):
    """A pin is held for what restoring its context is worth, without regard to running turns."""

    def decide(
        self, command: str | None, cost: RestoreCost, prediction: Prediction | None = None
    ) -> Decision:
        return super().decide(command, cost)


class WithoutReading(AgentKVPolicy):
    """No reply is read and no duration predicted; a pin is held for what restoring is worth."""

    uses_predictions = False


class WithoutPatience(AgentKVPolicy):
    """Nobody is served first for having waited long, or been overtaken often."""

    def is_urgent(self, turn: Turn) -> bool:
        return False

    def max_overtakes(self, num_turns: float) -> float:
        return math.inf


ABLATIONS: dict[str, type[Policy]] = {
    "switch": WithoutSwitch,
    "order": WithoutOrder,
    "protection": WithoutProtection,
    "admission": WithoutAdmission,
    "balance": WithoutBalance,
    "tails": WithoutTails,
    "prediction": WithoutPrediction,
    "reading": WithoutReading,
    "patience": WithoutPatience,
}
