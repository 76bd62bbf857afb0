"""Who was passed over: turns that waited for long while turns of later jobs got memory.

A job is later than another if the record knows it from later on; parents and priorities of jobs,
which a policy may go by, are not in it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from agentkv.integrations.vllm.settings import Settings

from .record_jobs import JobRecord

DEFAULT_AFTER_S: float = Settings.model_fields["patience_s"].default
"""The patience of the `agentkv` policy where nothing else is set."""


class _Start(NamedTuple):
    """A turn that got memory, and since when its job is there."""

    started_s: float
    arrived_s: float
    job_started_s: float
    is_first: bool
    is_due: bool


def passed_over(jobs: Iterable[JobRecord], after_s: float) -> dict[str, Any]:
    """Turns that waited longer than `after_s`, and saw turns of later jobs start after that.

    `first` turns of jobs are held against other first turns alone, `continuing` ones against all;
    the jobs of each engine among themselves. `most` is the most turns that one of them saw. Turns
    that were due, which go before all, do not count as later ones.
    """
    first, continuing = _count(after_s), _count(after_s)
    by_engine = sorted(jobs, key=_engine)
    for _, own in groupby(by_engine, key=_engine):
        starts = sorted(_starts(own))
        _add(continuing, [start for start in starts if not start.is_first], starts)
        opening = [start for start in starts if start.is_first]
        _add(first, opening, opening)
    return {"continuing": continuing, "first": first}


def _count(after_s: float) -> dict[str, Any]:
    return {"after_s": after_s, "turns": 0, "waited_longer": 0, "passed_over": 0, "most": 0}


def _engine(job: JobRecord) -> int:
    return -1 if job.engine is None else job.engine


def _starts(jobs: Iterable[JobRecord]) -> Iterable[_Start]:
    for job in jobs:
        for turn in job.turns:
            if turn.started_s is not None:
                times_s = turn.started_s, turn.arrived_s, job.started_s
                yield _Start(*times_s, turn.turn == 1, turn.is_due)


def _add(count: dict[str, Any], starts: Sequence[_Start], others: Sequence[_Start]) -> None:
    times_s = [other.started_s for other in others]
    for start in starts:
        count["turns"] += 1
        overdue_s = start.arrived_s + count["after_s"]
        if start.started_s <= overdue_s:
            continue
        between = slice(bisect_right(times_s, overdue_s), bisect_left(times_s, start.started_s))
        num_later = sum(
            other.job_started_s > start.job_started_s and not other.is_due
            for other in others[between]
        )
        count["waited_longer"] += 1
        count["passed_over"] += num_later > 0
        count["most"] = max(count["most"], num_later)
