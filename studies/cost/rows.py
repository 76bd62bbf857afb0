"""Two ways of doing one thing, timed in turns in one process, and the row that compares them.

Taking turns keeps a slow moment of the machine from hitting one of them alone.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """A measured value with the quartiles of its samples, and its target.

    `target` is the largest value allowed; with None the row is reported only.
    """

    name: str
    value: float
    unit: str
    low: float
    high: float
    n: int
    target: float | None = None
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
    name: str, bare_s: Sequence[float], ours_s: Sequence[float], *, target_ms: float
) -> Row:
    """Median of ours minus median of bare, in ms; quartiles of the differences of pairs."""
    low, _, high = quartiles([(b - a) * 1e3 for a, b in zip(bare_s, ours_s, strict=True)])
    bare_ms, ours_ms = statistics.median(bare_s) * 1e3, statistics.median(ours_s) * 1e3
    detail = f"{ours_ms:.3f} ms against {bare_ms:.3f} ms"
    return Row(name, ours_ms - bare_ms, "ms", low, high, len(bare_s), target_ms, detail)


def ratio_row(
    name: str, rounds: Sequence[tuple[Sequence[float], Sequence[float]]], *, target: float | None
) -> Row:
    """Median over rounds of the ratio of medians, ours to stock; a round is (stock_s, ours_s)."""
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


def side_by_side(
    bare: Callable[[], Any], ours: Callable[[], Any], num: int
) -> tuple[list[tuple[float, Any]], list[tuple[float, Any]]]:
    """Seconds and results of `num` runs of each side, in turns, after an uncounted run of each."""
    bare(), ours()
    sides: tuple[list[tuple[float, Any]], list[tuple[float, Any]]] = ([], [])
    with without_garbage_collection():
        for index in range(num):
            for side in (0, 1) if index % 2 else (1, 0):
                sides[side].append(timed((bare, ours)[side]))
    return sides


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect first, then not until the end: a collection would hit either side by chance."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
