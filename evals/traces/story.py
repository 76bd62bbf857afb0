"""What a log of an agent's requests tells without a server: where prompts broke.

A cache that never loses anything finds of a later prompt what it keeps of the context before, the
prompt and the reply of the turn before. All else is computed twice, on any server.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from .turns import Jobs, TracedTurn

WHOLE = 0.98
"""A prompt that keeps this share of the context before it is said to go on from it: chosen."""


def _kept_tokens(before: TracedTurn, after: TracedTurn) -> int:
    """Tokens of the context before that the next prompt begins with; at most, where the log does
    not tell."""
    kept = after.prompt_tokens if after.kept_tokens is None else after.kept_tokens
    return min(before.context_tokens, kept)


def explained_jobs(jobs: Jobs) -> Iterator[dict[str, Any]]:
    """Each job as a server's answer of GET /v1/agentkv/explain has it, with all that its turns
    could have found in a cache that never loses anything."""
    for job_id, turns in jobs.items():
        first = {"turn": turns[0].turn + 1, "prompt_tokens": turns[0].prompt_tokens}
        later = [_later_row(before, after) for before, after in pairwise(turns)]
        yield {
            "job_id": job_id,
            "has_no_hits": True,
            "tokens": {
                "later_prompt_tokens": sum(row["prompt_tokens"] for row in later),
                "later_hit_tokens": sum(row["hit_tokens"] for row in later),
                "recomputed_tokens": {
                    "diverged": sum(row["miss"]["tokens"] for row in later if row["miss"])
                },
            },
            "turns": [first | {"expected_tokens": 0, "hit_tokens": 0, "miss": None}, *later],
        }


def _later_row(before: TracedTurn, turn: TracedTurn) -> dict[str, Any]:
    expected, kept = before.context_tokens, _kept_tokens(before, turn)
    miss = None
    if kept < WHOLE * expected:
        place = "at most " if turn.kept_tokens is None else ""
        why = f"the prompt keeps {place}{kept:,} of {expected:,} tokens of the context before it"
        advice = "compare this request with the one before it: what stands before the new text?"
        if turn.prompt_tokens < expected:
            why += ", and is shorter"
            advice = "if the agent compacted its history: seldom and much at a time costs least"
        miss = {"tokens": expected - kept, "reason": "diverged", "why": why, "advice": advice}
    return {
        "turn": turn.turn + 1,
        "prompt_tokens": turn.prompt_tokens,
        "expected_tokens": expected,
        "hit_tokens": kept,
        "miss": miss,
    }
