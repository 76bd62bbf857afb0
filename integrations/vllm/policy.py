"""What a scheduling policy is asked, and the answer of one that has nothing to say.

Pure rules: no vLLM, no clock, no bookkeeping.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from agentkv.durations import Prediction
from agentkv.durations.ttl import TTL, ContinuumTTL

from .decision import Decision
from .demand import Demand, Room
from .jobs import Turn
from .pin_table import Pin
from .pressure import Pressure
from .prices import Rebuild
from .settings import Settings

Rank = tuple[int, int, int]
"""A place in line, its tier first; the smallest is served first."""

PREEMPTED, PINNED, UNPINNED = 0, 1, 2
"""Tiers of the waiting queue. A request without a job is UNPINNED, and once preempted PREEMPTED."""


class Policy(ABC):
    """Rules over the jobs of one engine, whose KV pool has room for `pool_tokens`."""

    takes_tails = False
    """A pin that yields gives up no more blocks than needed, the last ones first; else all."""

    holds_back = False
    """New jobs may have to wait: `why_hold_back` says when."""

    due_rank: Rank = (PREEMPTED - 1, 0, 0)
    """Place of a newcomer that was passed over `most_passes` times: before all others to be served,
    behind them to be preempted."""

    def __init__(self, settings: Settings, pool_tokens: int) -> None:
        self.settings = settings
        self.pool_tokens = pool_tokens
        self.pressure = Pressure()
        self.learned = ContinuumTTL(settings.fixed_ttl_s, settings.cold_start_samples)
        """What was seen of tools, waits and lengths of jobs; the statistics have it in any case."""

    def capped(self, seconds: float, reason: str) -> TTL:
        """A TTL within `max_ttl_s`."""
        return TTL(min(seconds, self.settings.max_ttl_s), reason)

    @abstractmethod
    def undecided_ttl(self, rebuild: Rebuild) -> TTL:
        """TTL of a turn that has just finished, of whose tool nothing is known yet."""

    @abstractmethod
    def decide(
        self, command: str | None, rebuild: Rebuild, prediction: Prediction | None = None
    ) -> Decision:
        """What becomes of the pin of a turn that now runs `command` (None: not known)."""

    @abstractmethod
    def rank(self, turn: Turn, *, is_preempted: bool, is_pinned: bool) -> Rank:
        """Place of a waiting turn; the smallest is served first."""

    @abstractmethod
    def victim_rank(self, turn: Turn) -> Rank:
        """Place of a running turn when memory runs out; the largest is preempted first."""

    @abstractmethod
    def sorts_running(self) -> bool:
        """Whether `victim_rank` decides who is preempted; else the last that was admitted is."""

    @abstractmethod
    def pins_that_yield(self, pins: Sequence[Pin[Any]], demand: Demand) -> Sequence[Pin[Any]]:
        """Of `pins`, newest job first, those to give up in order until an allocation succeeds."""

    def why_hold_back(self, room: Room) -> str | None:
        """Why a new job is not let in now; None to let it in."""
        return None

    def most_passes(self, num_turns: float) -> float:
        """How many later turns may go before a newcomer. `num_turns` is what the jobs that run or
        whose KV is held are expected to have together, over their whole lives."""
        return math.inf

    def pressure_s(self, rebuild: Rebuild) -> float:
        """How long memory counts as contended after it ran short of room for a context."""
        return math.inf
