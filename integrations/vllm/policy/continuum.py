"""The `continuum` policy: who goes first, who is pinned and for how long, who yields memory.

Pure rules: no vLLM, no clock, no bookkeeping. Two rule sets, since people compare against both:
`paper` (Continuum, arXiv 2511.02230 v6) and `released` (the code its authors published).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from agentkv.durations import Prediction
from agentkv.durations.ttl import TTL, FixedTTL

from ..settings import Settings
from .base import PINNED, PREEMPTED, UNPINNED, Demand, Policy, Rank
from .costs import Rebuild
from .jobs import Decision, Turn
from .pins import Pin


def tool_name(text: str) -> str:
    """The first word of a command: the tool as the published Continuum names it."""
    return text.split(maxsplit=1)[0][:256] if text.strip() else ""


class ContinuumPolicy(Policy):
    """Continuum's rules over one engine's jobs; holds only the distributions it has learned."""

    def __init__(self, settings: Settings, pool_tokens: int) -> None:
        super().__init__(settings, pool_tokens)
        self.pressure.rise(0.0, math.inf)  # its rules hold at all times
        self._is_paper = settings.rules == "paper"
        self._fixed = FixedTTL(settings.fixed_ttl_s, self.learned.durations)

    def ttl(self, tool: str | None, reload_s: float) -> TTL:
        """How long to pin a finished turn that runs `tool` (None: not known)."""
        if self.settings.ttl == "fixed":
            ttl = self._fixed.ttl(tool)
        else:
            ttl = self.learned.ttl(tool, reload_s)
        return self.capped(ttl.seconds, ttl.reason)

    def undecided_ttl(self, rebuild: Rebuild) -> TTL:
        """TTL of a turn that has just finished, of whose tool nothing is known yet."""
        return self.ttl(None, rebuild.alone_s)

    def decide(
        self, command: str | None, rebuild: Rebuild, prediction: Prediction | None = None
    ) -> Decision:
        """What becomes of the pin of a turn that now runs `command` (None: not known)."""
        return Decision(self.ttl(tool_name(command or "") or None, rebuild.alone_s), command)

    def rank(self, turn: Turn, *, is_preempted: bool, is_pinned: bool) -> Rank:
        """Place of a waiting turn; the smallest is served first.

        Paper: preempted turns, then turns whose job is pinned, then the rest, each in order of
        the job's arrival. The released code has no tier for preempted turns.
        """
        tier = PINNED if is_pinned else UNPINNED
        if is_preempted and self._is_paper:
            tier = PREEMPTED
        return (tier, turn.job.order, turn.order)

    def victim_rank(self, turn: Turn) -> Rank:
        """Place of a running turn when memory runs out; the largest is preempted first.

        The newest job goes first; the released code spares turns at their last step.
        """
        is_spared = turn.is_last_step and not self._is_paper
        return (0 if is_spared else 1, turn.job.order, turn.order)

    def sorts_running(self) -> bool:
        """Whether `victim_rank` decides who is preempted; else the last that was admitted is."""
        return True

    def pins_that_yield(self, pins: Sequence[Pin[Any]], demand: Demand) -> Sequence[Pin[Any]]:
        """Of `pins`, newest job first, those to give up in order until an allocation succeeds.

        Paper: always, the job that arrived latest first (its deadlock rule; memory pressure wins
        over a pin). Released: a running turn preempts other running turns before any pin yields,
        and a waiting one waits while anything runs; then the latest expiry first.
        """
        if self._is_paper:
            return pins
        if not demand.runs_alone:
            return []
        return sorted(pins, key=lambda pin: pin.expires_s, reverse=True)
