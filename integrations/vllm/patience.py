"""Notices turns that have waited for too long; times in seconds on the caller's clock."""

from __future__ import annotations

from collections import deque

from .jobs import Turn


class Patience:
    """Turns in order of arrival until they first run; every operation is O(1), on average.

    A turn that is preempted later is not waited for anew: measured, going first each time let such
    turns take memory from each other (docs/results.md).
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._waiting: deque[Turn] = deque()

    def begin(self, turn: Turn) -> None:
        """A turn arrives and waits from now on."""
        self._waiting.append(turn)

    def pop_overdue(self, now_s: float) -> Turn | None:
        """A turn that still waits after `patience_s`, once; None if there is none."""
        while self._waiting and now_s - self._waiting[0].arrived_s > self._patience_s:
            turn = self._waiting.popleft()
            if turn.admitted_s is None and turn.request_id in turn.job.live:
                return turn
        return None
