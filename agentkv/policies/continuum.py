"""The `continuum` policy: who goes first, who is pinned and for how long, who yields memory.

Two rule sets, since people compare against both: `paper` (Continuum, arXiv 2511.02230 v6) and
`released` (the code its authors published). Pure rules: no vLLM, no clock, no bookkeeping.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from agentkv.durations import Prediction
from agentkv.durations.ttl import TTL, ContinuumTTL, FixedTTL

from .base import PINNED, PREEMPTED, UNPINNED, AllocationRequest, Policy, Rank
from .costs import RestoreCost
from .jobs import Decision, Turn
from .pins import Pin
from .settings import Settings

_MAX_TOOL_CHARS = 4096


def tool_name(text: str) -> str:
    """Return the first word of a command: the tool as the published Continuum names it.

    Assignments before it, whose values may be secrets, are passed over.
    """
    words = text[:_MAX_TOOL_CHARS].split(maxsplit=16)
    return next((word[:256] for word in words if "=" not in word), "")


class ContinuumSettings(Settings):
    """Sets which of Continuum's rules hold, and its numbers."""

    rules: Literal["paper", "released"] = "paper"
    ttl: Literal["paper", "fixed"] = "paper"
    fixed_ttl_s: float = Field(2.0, ge=0, le=3600, allow_inf_nan=False)
    """TTL in seconds under `ttl: fixed`, and of the cold start under `ttl: paper`."""
    cold_start_samples: int = Field(100, ge=1, le=100_000)
    """K: tool durations seen before their distribution is used."""


class ContinuumPolicy(Policy):
    """Applies Continuum's rules at all times, with or without memory pressure."""

    settings_class = ContinuumSettings
    settings: ContinuumSettings

    def __init__(self, settings: Settings, pool_tokens: int) -> None:
        super().__init__(settings, pool_tokens)
        fixed_ttl_s = self.settings.fixed_ttl_s
        self.learned = ContinuumTTL(fixed_ttl_s, self.settings.cold_start_samples)
        self.pressure.rise(0.0, math.inf)
        self._is_paper = self.settings.rules == "paper"
        self._fixed = FixedTTL(fixed_ttl_s, self.learned.durations)

    def ttl(self, tool: str | None, reload_s: float) -> TTL:
        """Return how long to pin a finished turn that runs `tool` (None: not known)."""
        if self.settings.ttl == "fixed":
            ttl = self._fixed.ttl(tool)
        else:
            ttl = self.learned.ttl(tool, reload_s)
        return self.capped(ttl.seconds, ttl.reason)

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        """Pin for Continuum's TTL of a tool that is not known."""
        return self.ttl(None, cost.alone_s)

    def decide(
        self, command: str | None, cost: RestoreCost, prediction: Prediction | None = None
    ) -> Decision:
        """Pin for Continuum's TTL of the tool, which is the command's first word."""
        return Decision(self.ttl(tool_name(command or "") or None, cost.alone_s), command)

    def rank(self, turn: Turn, *, is_preempted: bool, is_pinned: bool) -> Rank:
        """Serve preempted turns, then pinned jobs, then the rest, each in order of job arrival.

        The released code has no tier for preempted turns.
        """
        tier = PINNED if is_pinned else UNPINNED
        if is_preempted and self._is_paper:
            tier = PREEMPTED
        return (tier, turn.job.order, turn.order)

    def victim_rank(self, turn: Turn) -> Rank:
        """Preempt the newest job first; the released code spares turns at their last step."""
        is_spared = turn.is_last_step and not self._is_paper
        return (0 if is_spared else 1, turn.job.order, turn.order)

    def sorts_running(self) -> bool:
        return True

    def pins_that_yield(
        self, pins: Sequence[Pin[Any]], request: AllocationRequest
    ) -> Sequence[Pin[Any]]:
        """Give up, under `paper`, the pin of the job that arrived last first (its deadlock rule).

        Released: running turns preempt each other before any pin yields, and a waiting one waits
        while anything runs; then the pin with the latest expiry goes first.
        """
        if self._is_paper:
            return pins
        if not request.runs_alone:
            return []
        return sorted(pins, key=lambda pin: pin.expires_s, reverse=True)
