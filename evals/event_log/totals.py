"""Adds up a server's event log, per job and over all jobs, as JSON values.

Used by `agentkv record`. A share or a mean of nothing is None.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from agentkv.integrations.vllm.settings import Settings

from ..summary import mean, quantile
from .jobs import KEPT_ENDS, WASTED_ENDS, JobRecord, PinRecord, TurnRecord

DEFAULT_AFTER_S: float = Settings.model_fields["patience_s"].default
"""The patience of the `agentkv` policy where nothing else is set."""


def totals(jobs: Sequence[JobRecord]) -> dict[str, Any]:
    """One document over all jobs."""
    turns = [turn for job in jobs for turn in job.turns]
    bubbles = [bubble for job in jobs for bubble in job.bubbles]
    return {
        "jobs": len(jobs),
        **_turn_counts(turns),
        "bubble_s": _spread(bubble.seconds for bubble in bubbles),
        "bubble_tool_s": _spread(bubble.tool_s for bubble in bubbles),
        "bubble_queued_s": _spread(bubble.queued_s for bubble in bubbles),
        **_hits(turns),
        "queued_first_s": _spread(_waits(turn for turn in turns if turn.turn == 1)),
        "queued_evicted_s": _spread(_waits(turn for turn in turns if turn.lost_tokens)),
        "queued_kept_s": _spread(
            _waits(turn for turn in turns if turn.is_continuing and not turn.lost_tokens)
        ),
        **_pins([pin for job in jobs for pin in job.pins]),
        "closed": dict(Counter(job.close_reason or "open" for job in jobs)),
    }


def job_row(job: JobRecord) -> dict[str, Any]:
    """One job: the same counts, and its turns one by one."""
    return {
        "job_id": job.job_id,
        "engine": job.engine,
        "life": job.life,
        "started_s": round(job.started_s, 6),
        "ended_s": round(job.ended_s, 6),
        "close_reason": job.close_reason,
        **_turn_counts(job.turns),
        "bubbles_s": [round(bubble.seconds, 6) for bubble in job.bubbles],
        "bubble_tools_s": [round(bubble.tool_s, 6) for bubble in job.bubbles],
        "bubble_queued_s": [round(bubble.queued_s, 6) for bubble in job.bubbles],
        **_hits(job.turns),
        "queued_evicted_s": [
            round(wait_s, 6) for wait_s in _waits(turn for turn in job.turns if turn.lost_tokens)
        ],
        **_pins(job.pins),
        "turn_rows": [_turn_row(turn) for turn in job.turns],
    }


def _turn_row(turn: TurnRecord) -> dict[str, Any]:
    waited_s = turn.waited_s
    return {
        "turn": turn.turn,
        "arrived_s": turn.arrived_s,
        "started_s": turn.started_s,
        "ended_s": turn.ended_s,
        "waited_s": None if waited_s is None else round(waited_s, 6),
        "prompt_tokens": turn.prompt_tokens,
        "hit_tokens": turn.hit_tokens,
        "expected_hit_tokens": turn.expected_hit_tokens,
        "lost_tokens": turn.lost_tokens,
        "preemptions": len(turn.preempted_s),
        "is_diverged": turn.is_diverged,
        "is_aborted": turn.is_aborted,
        "is_retry": turn.is_retry,
    }


def _turn_counts(turns: Sequence[TurnRecord]) -> dict[str, int]:
    return {
        "turns": len(turns),
        "turns_finished": sum(t.ended_s is not None and not t.is_aborted for t in turns),
        "turns_aborted": sum(turn.is_aborted for turn in turns),
        "turns_evicted": sum(turn.lost_tokens > 0 for turn in turns),
        "turns_diverged": sum(turn.is_diverged for turn in turns),
        "preemptions": sum(len(turn.preempted_s) for turn in turns),
    }


def _hits(turns: Sequence[TurnRecord]) -> dict[str, Any]:
    """Tokens of continuing turns: a first turn has nothing of its own to find."""
    continuing = [turn for turn in turns if turn.is_continuing]
    prompt_tokens = sum(turn.prompt_tokens for turn in continuing)
    hit_tokens = sum(turn.hit_tokens for turn in continuing)
    return {
        "prompt_tokens": prompt_tokens,
        "hit_tokens": hit_tokens,
        "expected_hit_tokens": sum(turn.expected_hit_tokens for turn in continuing),
        "lost_tokens": sum(turn.lost_tokens for turn in turns),
        "hit_rate": round(hit_tokens / prompt_tokens, 6) if prompt_tokens else None,
    }


def _pins(pins: Sequence[PinRecord]) -> dict[str, Any]:
    kept = [pin for pin in pins if pin.end in KEPT_ENDS]
    wasted = [pin for pin in pins if pin.end in WASTED_ENDS]
    return {
        "pins": len(pins),
        "pins_kept": len(kept),
        "pins_wasted": len(wasted),
        "pin_ends": dict(Counter(pin.end for pin in pins if pin.end is not None)),
        "kept_block_s": round(sum(pin.block_seconds for pin in kept), 6),
        "wasted_block_s": round(sum(pin.block_seconds for pin in wasted), 6),
    }


def _waits(turns: Iterable[TurnRecord]) -> list[float]:
    return [turn.waited_s for turn in turns if turn.waited_s is not None]


def _spread(values: Iterable[float]) -> dict[str, Any]:
    times_s = list(values)
    shares = {"p50": 0.5, "p90": 0.9, "max": 1.0}
    found = {
        "mean": mean(times_s),
        **{name: quantile(times_s, share) for name, share in shares.items()},
    }
    rounded = {name: None if value is None else round(value, 6) for name, value in found.items()}
    return {"n": len(times_s), **rounded}


class _Start(NamedTuple):
    """A turn that got memory, and the time its job has been known for."""

    started_s: float
    arrived_s: float
    job_started_s: float
    is_first: bool
    is_due: bool


def passed_over(jobs: Iterable[JobRecord], after_s: float) -> dict[str, Any]:
    """Turns that waited longer than `after_s`, and saw turns of later jobs start after that.

    A job is later than another if its first event is; parents and priorities of jobs, which a
    policy may go by, are not in the log. `first` turns of jobs are compared with other first turns
    alone, `continuing` ones with all, each engine by itself. `most` is the largest number of later
    turns that one of them saw. Turns that were due, which go before all, do not count as later.
    """
    names = ("turns", "waited_longer", "passed_over", "most")
    first = {"after_s": after_s, **dict.fromkeys(names, 0)}
    continuing = dict(first)
    by_engine = sorted(jobs, key=_engine)
    for _, same in groupby(by_engine, key=_engine):
        starts = sorted(_starts(same))
        opening = [start for start in starts if start.is_first]
        _add(continuing, [start for start in starts if not start.is_first], starts)
        _add(first, opening, opening)
    return {"continuing": continuing, "first": first}


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
