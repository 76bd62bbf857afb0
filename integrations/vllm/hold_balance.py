"""Whether holding idle KV pays: its cost beside that of having contexts again without it."""

from __future__ import annotations

import math

PRIOR = 0.025
"""Of `memory_s`: so long is added to both sums, so that little of either decides nothing. With
`memory_s` ten break-even times that is a quarter of one: without it the first seconds decide, with
four times as much short jobs wait too long (docs/results.md)."""


class HoldBalance:
    """Two sums over time, both in seconds of the whole pool, and what they say about new jobs.

    One is memory that was held idle while a job waited to be let in; the other what it took to have
    contexts again that had left the GPU: to compute them what that is worth (see StepFit), to load
    them from a tier the memory that they are loaded into. The past counts less and less, by 1/e
    after `memory_s`. Every operation is O(1).
    """

    def __init__(self) -> None:
        self._held_s = 0.0
        self._back_s = 0.0
        self._memory_s = 0.0
        self._now_s = 0.0
        self._asked_s = 0.0
        self._is_held_back = False

    def asked(
        self, now_s: float, *, is_held_back: bool, idle_share: float, memory_s: float
    ) -> None:
        """A new job is let in or held back now; idle KV has `idle_share` of the pool, 0 to 1."""
        elapsed_s = now_s - self._asked_s
        self._memory_s = memory_s
        self._forget(now_s)
        if self._is_held_back:
            self._held_s += idle_share * elapsed_s
        self._asked_s = now_s
        self._is_held_back = is_held_back

    def left(self) -> None:
        """A job that was held back does not wait any more; whether others do, they say next."""
        self._is_held_back = False

    def came_back(self, now_s: float, seconds: float) -> None:
        """To have a context again that had left the GPU took so many seconds of the whole pool."""
        self._forget(now_s)
        self._back_s += seconds

    def _forget(self, now_s: float) -> None:
        kept = math.exp((self._now_s - now_s) / self._memory_s) if self._memory_s else 0.0
        self._back_s *= kept
        self._held_s *= kept
        self._now_s = now_s

    @property
    def idle_weight(self) -> float:
        """The part of idle KV that is to count when a new job asks for room, 0 to 1: what coming
        back has cost over what holding has, and all of it where that is more."""
        prior_s = PRIOR * self._memory_s
        held_s = self._held_s + prior_s
        return min(1.0, (self._back_s + prior_s) / held_s) if held_s else 1.0
