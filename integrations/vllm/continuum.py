"""The `continuum` policy: who goes first, who is pinned and for how long, who yields memory.

Pure rules: no vLLM, no clock, no bookkeeping. Two rule sets, since people compare against both:
`paper` (Continuum, arXiv 2511.02230 v6) and `released` (the code its authors published).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from agentkv.durations import Prediction
from agentkv.ttl import TTL, ContinuumTTL, FixedTTL, ToolDurations

from .decision import Decision
from .demand import Demand, Rebuild, Room
from .jobs import Turn
from .pin_table import Pin
from .pressure import Pressure
from .settings import Settings

PREEMPTED, PINNED, UNPINNED = 0, 1, 2
"""Tiers of the waiting queue, first served first."""

Rank = tuple[int, int, int]


def tool_name(text: str) -> str:
    """The first word of a command: the tool as the published Continuum names it."""
    return text.split(maxsplit=1)[0][:256] if text.strip() else ""


class ContinuumPolicy:
    """Continuum's rules over one engine's jobs; holds only the distributions it has learned."""

    takes_tails = False
    """A pin that yields gives up no more blocks than needed, the last ones first; else all."""

    has_tier = False
    """What is let go is demoted rather than dropped; Continuum does not ask."""

    holds_back = False
    """New jobs may have to wait: `why_hold` says when."""

    due_rank: Rank = (PREEMPTED - 1, 0, 0)
    """Place of a newcomer that was passed over `most_passes` times: before all others to be served,
    behind them to be preempted."""

    def __init__(self, settings: Settings, pool_tokens: int) -> None:
        self.settings = settings
        self.pool_tokens = pool_tokens
        self.pressure = Pressure()
        self.pressure.rise(0.0, math.inf)  # its rules hold at all times
        self._is_paper = settings.rules == "paper"
        self.durations = ToolDurations()
        self.learned = ContinuumTTL(
            settings.fixed_ttl_s, settings.cold_start_samples, self.durations
        )
        self._fixed = FixedTTL(settings.fixed_ttl_s, self.durations)

    def ttl(self, tool: str | None, reload_s: float) -> TTL:
        """How long to pin a finished turn that runs `tool` (None: not known)."""
        if self.settings.ttl == "fixed":
            ttl = self._fixed.ttl(tool)
        else:
            ttl = self.learned.ttl(tool, reload_s)
        return self.capped(ttl.seconds, ttl.reason)

    def capped(self, seconds: float, reason: str) -> TTL:
        """A TTL within `max_ttl_s`."""
        return TTL(min(seconds, self.settings.max_ttl_s), reason)

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

    def why_hold(self, room: Room) -> str | None:
        """Why a new job is not let in; Continuum lets all in."""
        return None

    def most_passes(self, num_turns: float) -> float:
        """How many later turns may go before a newcomer. `num_turns` is what the jobs that run or
        whose KV is held are expected to have together, over their whole lives; Continuum has no
        such bound."""
        return math.inf

    def weigh_tier(self, rebuild: Rebuild) -> None:
        """Find out whether there is a tier: asked whenever context is loaded or lost."""

    def pressure_s(self, rebuild: Rebuild) -> float:
        """How long memory counts as contended after it ran short."""
        return math.inf
