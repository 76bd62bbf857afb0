"""Loads from DRAM to the GPU: one after the other, at the link's rate, beside the computing."""

from __future__ import annotations

import math
from collections import deque


class PcieLink:
    """Times in seconds on the run's clock, rate in bytes per second."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0
        self._loads: deque[tuple[float, str]] = deque()

    def start(self, request_id: str, num_bytes: int, now_s: float) -> None:
        """Queue a load behind those under way."""
        self._free_s = max(self._free_s, now_s) + num_bytes / self._bytes_per_s
        self._loads.append((self._free_s, request_id))

    @property
    def next_done_s(self) -> float:
        """When the next load is done; infinity if there is none."""
        return self._loads[0][0] if self._loads else math.inf

    def take_done(self, now_s: float) -> list[str]:
        """The requests whose loads are done by now."""
        done = []
        while self.next_done_s <= now_s:
            done.append(self._loads.popleft()[1])
        return done
