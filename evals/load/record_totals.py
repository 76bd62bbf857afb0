"""What the record adds up to, per job and over all jobs, as JSON values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .record_jobs import KEPT_ENDS, WASTED_ENDS, JobRecord, PinRecord, TurnRecord


def totals(jobs: Sequence[JobRecord]) -> dict[str, Any]:
    """One document over all jobs; a share or a mean of nothing is None."""
    turns = [turn for job in jobs for turn in job.turns]
    bubbles = [bubble for job in jobs for bubble in job.bubbles]
    evicted = [turn for turn in turns if turn.lost_tokens]
    kept = [turn for turn in turns if turn.is_continuing and not turn.lost_tokens]
    return {
        "jobs": len(jobs),
        **_turn_counts(turns),
        "bubble_s": _spread(bubble.seconds for bubble in bubbles),
        "bubble_tool_s": _spread(bubble.tool_s for bubble in bubbles),
        "bubble_queued_s": _spread(bubble.queued_s for bubble in bubbles),
        **_hits(turns),
        "queued_first_s": _spread(_waits(turn for turn in turns if turn.turn == 1)),
        "queued_evicted_s": _spread(_waits(evicted)),
        "queued_kept_s": _spread(_waits(kept)),
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
    ended = [pin for pin in pins if pin.end is not None]
    kept = [pin for pin in ended if pin.end in KEPT_ENDS]
    wasted = [pin for pin in ended if pin.end in WASTED_ENDS]
    return {
        "pins": len(pins),
        "pins_kept": len(kept),
        "pins_wasted": len(wasted),
        "pin_ends": dict(Counter(pin.end for pin in ended)),
        "kept_block_s": round(sum(pin.block_seconds for pin in kept), 6),
        "wasted_block_s": round(sum(pin.block_seconds for pin in wasted), 6),
    }


def _waits(turns: Iterable[TurnRecord]) -> list[float]:
    return [turn.waited_s for turn in turns if turn.waited_s is not None]


def _spread(values: Iterable[float]) -> dict[str, Any]:
    seconds = list(values)
    if not seconds:
        return {"n": 0, "mean": None, "p50": None, "p90": None, "max": None}
    p50, p90 = np.quantile(seconds, [0.5, 0.9])
    return {
        "n": len(seconds),
        "mean": round(float(np.mean(seconds)), 6),
        "p50": round(float(p50), 6),
        "p90": round(float(p90), 6),
        "max": round(max(seconds), 6),
    }
