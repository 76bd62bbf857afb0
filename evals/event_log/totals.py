"""Adds up a server's event log, per job and over all jobs, as JSON values.

Used by `agentkv record`. A share or a mean of nothing is None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from agentkv.integrations.vllm.watch.job_view import (
    KEPT_ENDS,
    WASTED_ENDS,
    HoldView,
    JobView,
    TurnView,
)
from agentkv.policies.settings import Settings

from ..summary import mean, quantile

DEFAULT_AFTER_S: float = Settings.model_fields["patience_s"].default
"""The patience of the `agentkv` policy where nothing else is set."""


def totals(jobs: Sequence[JobView]) -> dict[str, Any]:
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
        "queued_first_s": _spread(_waits(t for t in turns if t.turn == 1)),
        "queued_evicted_s": _spread(_waits(t for t in turns if t.lost_tokens)),
        "queued_kept_s": _spread(_waits(t for t in turns if t.is_continuing and not t.lost_tokens)),
        **_pins([pin for job in jobs for pin in job.holds]),
        "closed": dict(Counter(job.close_reason or "open" for job in jobs)),
    }


def job_row(job: JobView) -> dict[str, Any]:
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
        "queued_evicted_s": [round(s, 6) for s in _waits(t for t in job.turns if t.lost_tokens)],
        **_pins(job.holds),
        "turn_rows": [_turn_row(turn) for turn in job.turns],
    }


_TURN_FIELDS = (
    *("turn", "arrived_s", "started_s", "ended_s", "prompt_tokens", "hit_tokens"),
    *("expected_hit_tokens", "lost_tokens", "is_diverged", "is_aborted", "is_retry"),
)


def _turn_row(turn: TurnView) -> dict[str, Any]:
    return {
        **{name: getattr(turn, name) for name in _TURN_FIELDS},
        "waited_s": None if turn.waited_s is None else round(turn.waited_s, 6),
        "preemptions": len(turn.preempted_s),
    }


def _turn_counts(turns: Sequence[TurnView]) -> dict[str, int]:
    return {
        "turns": len(turns),
        "turns_finished": sum(t.ended_s is not None and not t.is_aborted for t in turns),
        "turns_aborted": sum(turn.is_aborted for turn in turns),
        "turns_evicted": sum(turn.lost_tokens > 0 for turn in turns),
        "turns_diverged": sum(turn.is_diverged for turn in turns),
        "preemptions": sum(len(turn.preempted_s) for turn in turns),
    }


def _hits(turns: Sequence[TurnView]) -> dict[str, Any]:
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


def _pins(pins: Sequence[HoldView]) -> dict[str, Any]:
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


def _waits(turns: Iterable[TurnView]) -> list[float]:
    return [turn.waited_s for turn in turns if turn.waited_s is not None]


def _spread(values: Iterable[float]) -> dict[str, Any]:
    times_s = list(values)
    shares = {"p50": 0.5, "p90": 0.9, "max": 1.0}
    found = {"mean": mean(times_s)} | {key: quantile(times_s, at) for key, at in shares.items()}
    return {"n": len(times_s)} | {
        key: None if value is None else round(value, 6) for key, value in found.items()
    }


def passed_over(jobs: Iterable[JobView], after_s: float) -> dict[str, Any]:
    """Count turns that waited longer than `after_s` and then saw turns of later jobs start.

    A job is later than another of its engine if its first event is; parents and priorities of jobs
    are not in the log. `first` turns are compared with other first turns alone, `continuing` ones
    with all. `most` is the largest number of later turns that one of them saw. Turns that were due,
    which go before all, do not count as later.
    """
    rows = [
        (job.engine or 0, job.started_s, t.arrived_s, t.started_s, t.turn == 1, t.is_due)
        for job in jobs
        for t in job.turns
        if t.started_s is not None
    ]
    engine, known_s, arrived_s, started_s, first, due = np.array(rows, float).reshape(-1, 6).T
    is_first, overdue_s = first == 1, arrived_s + after_s
    counts = {}
    groups = {"continuing": (~is_first, due == 0), "first": (is_first, is_first & (due == 0))}
    for name, (is_counted, may_pass) in groups.items():
        late = np.flatnonzero(is_counted & (started_s > overdue_s))
        num_later = []
        for turn in late:
            is_later = may_pass & (engine == engine[turn]) & (known_s > known_s[turn])
            is_between = (started_s > overdue_s[turn]) & (started_s < started_s[turn])
            num_later.append(int(np.sum(is_later & is_between)))
        counts[name] = {
            "after_s": after_s,
            "turns": int(is_counted.sum()),
            "waited_longer": len(late),
            "passed_over": sum(count > 0 for count in num_later),
            "most": max(num_later, default=0),
        }
    return counts
