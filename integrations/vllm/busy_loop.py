"""The engine's busy loop as its scheduler sees it."""

from __future__ import annotations

from typing import Any

from vllm.v1.metrics.stats import SchedulerStats

from . import seam
from .expiry_timer import ExpiryTimer


class BusyLoop:
    """Can be woken while it is idle, and takes stats; without an engine nothing happens."""

    def __init__(self) -> None:
        self._engine: Any = None
        self._timer: ExpiryTimer | None = None

    @property
    def is_attached(self) -> bool:
        return self._engine is not None

    def attach(self, engine: Any) -> None:
        """The engine that runs the scheduler; called once."""
        self._engine = engine
        self._timer = ExpiryTimer(self.wake)

    def wake(self) -> None:
        """Make an idle engine look at its scheduler; callable from any thread."""
        if self._engine is not None:
            seam.wake(self._engine)

    def wake_at(self, time_s: float) -> None:
        """The same at a time on the monotonic clock."""
        if self._timer is not None:
            self._timer.set_deadline(time_s)

    def push_stats(self, stats: SchedulerStats) -> None:
        """Send stats without waiting for a step's outputs."""
        if self._engine is not None:
            seam.push_stats(self._engine, stats)
