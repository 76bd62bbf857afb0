"""Numbers to draw: the mean over repeats and seeds, and the least and largest of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from .runs import Run

Measure = Callable[[Run], float | None]


@dataclass(frozen=True, slots=True)
class Point:
    """One place on a line: the mean of `num_runs` values, and how far they lie apart."""

    x: float
    mean: float
    least: float
    most: float
    num_runs: int


def point(x: float, values: Sequence[float]) -> Point:
    return Point(x, fmean(values), min(values), max(values), len(values))


def summary_value(name: str, *, scale: float = 1.0) -> Measure:
    """The measure that reads `name` from a run's summary; None where the run has no such value."""

    def measure(run: Run) -> float | None:
        value = run.summary.get(name)
        return value * scale if isinstance(value, int | float) else None

    return measure


def against_load(runs: Iterable[Run], measure: Measure) -> dict[str, list[Point]]:
    """A line for each policy that has a value under some load."""
    values: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        value = measure(run)
        if value is not None and run.load is not None:
            values[run.policy][run.load].append(value)
    return _lines(values)


def saved_against_load(
    runs: Sequence[Run], measure: Measure, baseline: str
) -> dict[str, list[Point]]:
    """(baseline - policy) / baseline in percent, run by run against the one with the same jobs.

    Where the baseline has no such run, its mean under the same load stands in.
    """
    base = [run for run in runs if run.policy == baseline]
    paired = {run.pair: measure(run) for run in base}
    means = {place.x: place.mean for place in against_load(base, measure).get(baseline, ())}
    values: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        own = measure(run)
        if run.load is None or own is None or run.policy == baseline:
            continue
        reference = paired.get(run.pair) or means.get(run.load)
        if reference:
            values[run.policy][run.load].append(100.0 * (reference - own) / reference)
    return _lines(values)


def _lines(values: dict[str, dict[float, list[float]]]) -> dict[str, list[Point]]:
    return {
        policy: [point(x, by_load[x]) for x in sorted(by_load)]
        for policy, by_load in values.items()
    }
