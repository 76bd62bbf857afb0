"""What was seen lately: durations in sliding windows, over all tools and per tool, and job lengths.

Continuum's TTL is computed from these; the simulator and the plugin take means of waits from them.
Bounded in memory. Knows nothing of policies or clocks.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque

GLOBAL_WINDOW, TOOL_WINDOW = 512, 256
"""Durations kept over all tools, and per tool."""
MAX_TOOLS = 256
"""Tools remembered; the least recently seen is dropped first."""


class DurationWindow:
    """The last `size` durations, sorted: an empirical distribution in seconds."""

    __slots__ = ("_in_order", "_sorted", "_total_s", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._in_order: deque[float] = deque()
        self._sorted: list[float] = []
        self._total_s = 0.0

    def __len__(self) -> int:
        return len(self._sorted)

    def observe(self, duration_s: float) -> None:
        """Add one duration; a full window drops its oldest. O(size)."""
        if len(self._in_order) == self.size:
            oldest_s = self._in_order.popleft()
            del self._sorted[bisect_left(self._sorted, oldest_s)]
            self._total_s -= oldest_s
        self._in_order.append(duration_s)
        insort(self._sorted, duration_s)
        self._total_s += duration_s

    @property
    def mean_s(self) -> float:
        """Mean in seconds; 0 while empty."""
        return self._total_s / len(self._sorted) if self._sorted else 0.0

    def share_at_most(self, duration_s: float) -> float:
        """Return P(tau): the share of the window up to `duration_s`; 0 while empty."""
        if not self._sorted:
            return 0.0
        return bisect_right(self._sorted, duration_s) / len(self._sorted)

    def p_over(self, seconds: float) -> float:
        """Return the share of the window that is longer; 1 while empty."""
        return 1.0 - self.share_at_most(seconds)

    def quantile_s(self, share: float) -> float:
        """Return the seconds that this share of the window does not exceed."""
        return self._sorted[min(int(share * len(self._sorted)), len(self._sorted) - 1)]

    def expected_left_s(self, elapsed_s: float) -> float:
        """Return E[T - t | T > t], the mean seconds that are left after `elapsed_s`.

        After longer than anything seen, as long again; 0 while empty. O(window).
        """
        longer = self._sorted[bisect_right(self._sorted, elapsed_s) :]
        if not longer:
            return elapsed_s if self._sorted else 0.0
        return sum(longer) / len(longer) - elapsed_s

    def best_ttl_s(self, benefit_s: float) -> float:
        """Return the tau of 0 and the observed durations with the largest P(tau) * benefit - tau.

        Ties go to the shorter TTL. O(window).
        """
        num = len(self._sorted)
        best_ttl_s, best_gain_s = 0.0, self.share_at_most(0.0) * benefit_s
        for index, duration_s in enumerate(self._sorted):
            gain_s = (index + 1) / num * benefit_s - duration_s
            if gain_s > best_gain_s:
                best_ttl_s, best_gain_s = duration_s, gain_s
        return best_ttl_s


class ToolDurations:
    """Tool durations per tool and over all tools, bounded in memory.

    At most MAX_TOOLS * TOOL_WINDOW + GLOBAL_WINDOW durations, each kept twice: under 4 MiB.
    """

    def __init__(self) -> None:
        self.over_all = DurationWindow(GLOBAL_WINDOW)
        self.num_observed = 0
        self._by_tool: OrderedDict[str, DurationWindow] = OrderedDict()

    def observe(self, tool: str | None, duration_s: float) -> None:
        """Add the duration of one tool call; `tool` None counts in the global window only."""
        self.num_observed += 1
        self.over_all.observe(duration_s)
        if tool is None:
            return
        window = self._by_tool.pop(tool, None) or DurationWindow(TOOL_WINDOW)
        window.observe(duration_s)
        self._by_tool[tool] = window
        if len(self._by_tool) > MAX_TOOLS:
            self._by_tool.popitem(last=False)

    def of(self, tool: str | None) -> DurationWindow | None:
        """Return the window of one tool, None if it was never seen."""
        return self._by_tool.get(tool) if tool is not None else None


class Memoryfulness:
    """eta = -Corr(k, N - k) over finished jobs, k turns served of N.

    It is 1 if all jobs have the same length (each turn served is one turn less to come), 0 if the
    turns served say nothing of those to come. Clamped to 0..1; 1 while undefined (no job longer
    than one turn has finished), since agents run under a common step limit.
    """

    def __init__(self, num_jobs: int = 1000) -> None:
        self._lengths: deque[int] = deque(maxlen=num_jobs)
        self._sums = [0, 0, 0, 0, 0, 0]

    def observe(self, num_turns: int) -> None:
        """Add a finished job of `num_turns` >= 1 turns. O(1)."""
        dropped = _sums_of(self._lengths[0]) if len(self._lengths) == self._lengths.maxlen else ()
        self._lengths.append(num_turns)
        for index, value in enumerate(_sums_of(num_turns)):
            self._sums[index] += value - (dropped[index] if dropped else 0)

    @property
    def eta(self) -> float:
        num, served, left, served_squared, left_squared, product = self._sums
        variance_served = num * served_squared - served * served
        variance_left = num * left_squared - left * left
        if variance_served <= 0 or variance_left <= 0:
            return 1.0
        covariance = num * product - served * left
        correlation = covariance / math.sqrt(variance_served * variance_left)
        return min(1.0, max(0.0, -correlation))


def _sums_of(n: int) -> tuple[int, ...]:
    """Return the number of a job's points (k, n - k), and their sums, squares and product."""
    served, left = n * (n + 1) // 2, n * (n - 1) // 2
    served_squared = served * (2 * n + 1) // 3
    return n, served, left, served_squared, left * (2 * n - 1) // 3, n * served - served_squared
