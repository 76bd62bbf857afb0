"""Two ways of doing one thing, timed in turns in one process: what the second costs more.

Taking turns keeps a slow moment of the machine from hitting one of them alone.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a value against its target, with the samples' quartiles."""

    name: str
    value: float
    unit: str
    low: float
    """Lower quartile."""
    high: float
    """Upper quartile."""
    n: int
    target: float | None = None
    """Largest value allowed; None: reported only."""
    detail: str = ""

    @property
    def has_passed(self) -> bool:
        return self.target is None or self.value <= self.target

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "has_passed": self.has_passed}


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile of at least two samples."""
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, median, high


def difference_row(
    name: str,
    bare_s: Sequence[float],
    ours_s: Sequence[float],
    *,
    target_ms: float | None,
) -> Row:
    """Median of ours minus median of bare, in ms; quartiles of the pairs' differences."""
    pairs_ms = [(ours - bare) * 1e3 for bare, ours in zip(bare_s, ours_s, strict=True)]
    low, _, high = quartiles(pairs_ms)
    bare_ms, ours_ms = statistics.median(bare_s) * 1e3, statistics.median(ours_s) * 1e3
    detail = f"{ours_ms:.3f} ms against {bare_ms:.3f} ms"
    return Row(name, ours_ms - bare_ms, "ms", low, high, len(pairs_ms), target_ms, detail)


def ratio_row(
    name: str,
    rounds: Sequence[tuple[Sequence[float], Sequence[float]]],
    *,
    target: float | None,
) -> Row:
    """Median of the rounds' ratios of medians, ours to stock; each round is (stock_s, ours_s)."""
    ratios = [statistics.median(ours_s) / statistics.median(stock_s) for stock_s, ours_s in rounds]
    low, value, high = quartiles(ratios)
    stock_us = statistics.median([s for stock_s, _ in rounds for s in stock_s]) * 1e6
    ours_us = statistics.median([s for _, ours_s in rounds for s in ours_s]) * 1e6
    num = sum(len(stock_s) for stock_s, _ in rounds)
    detail = f"{ours_us:.0f} us against {stock_us:.0f} us, {len(rounds)} rounds"
    return Row(name, value, "x", low, high, num, target, detail)


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that `action` took, and its result."""
    started_s = time.perf_counter()
    result = action()
    return time.perf_counter() - started_s, result


async def timed_async(action: Callable[[], Awaitable[None]]) -> float:
    """Seconds that awaiting `action` took."""
    started_s = time.perf_counter()
    await action()
    return time.perf_counter() - started_s


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect first, then not until the end: a pass would hit whichever is running."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
