"""Time that passes only when it is told to."""

from __future__ import annotations


class VirtualClock:
    """Seconds since the start of a run; called like `time.monotonic`."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s
