"""Two ways of doing one thing, timed in turns in one process, and the row that compares them.

Taking turns keeps a slow moment of the machine from hitting one of them alone.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


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


def samples_row(name: str, samples: Any, unit: str, target: float | None, detail: str = "") -> Row:
    """Median and quartiles of samples."""
    low, value, high = np.percentile(samples, (25, 50, 75)).tolist()
    return Row(name, value, unit, low, high, len(samples), target, detail)


def difference_row(
    name: str, bare_s: Sequence[float], ours_s: Sequence[float], *, target_ms: float
) -> Row:
    """Median of ours minus median of bare, in ms; quartiles of the differences of pairs."""
    low, high = (np.percentile(np.subtract(ours_s, bare_s), (25, 75)) * 1e3).tolist()
    bare_ms, ours_ms = float(np.median(bare_s)) * 1e3, float(np.median(ours_s)) * 1e3
    detail = f"{ours_ms:.3f} ms against {bare_ms:.3f} ms"
    return Row(name, ours_ms - bare_ms, "ms", low, high, len(bare_s), target_ms, detail)


def ratio_row(name: str, stock_s: Any, ours_s: Any, *, target: float | None) -> Row:
    """Median over rounds of the ratio of medians, ours to stock; both have a line a round."""
    ratios = np.median(ours_s, axis=1) / np.median(stock_s, axis=1)
    stock_us, ours_us = np.median(stock_s) * 1e6, np.median(ours_s) * 1e6
    detail = f"{ours_us:.0f} us against {stock_us:.0f} us, {len(ratios)} rounds"
    low, value, high = np.percentile(ratios, (25, 50, 75)).tolist()
    return Row(name, value, "x", low, high, np.size(stock_s), target, detail)


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
