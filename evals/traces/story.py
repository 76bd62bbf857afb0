"""What a log of an agent's requests tells without a server: what it holds, and where prompts broke.

A cache that never loses anything finds of a later prompt what it keeps of the context before, the
prompt and the reply of the turn before. All else is computed twice, on any server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from agentkv.commands.analysis import command_key

from ..outcomes import quantile
from ..tables import cell, text_table
from .logs import TracedFile
from .turns import Jobs, TracedTurn, jobs_among

MAX_TOOLS = 8
SHARES = (0.1, 0.5, 0.9, 1.0)
WHOLE = 0.98
"""A prompt that keeps this share of the context before it is said to go on from it: chosen."""


def describe(files: Sequence[TracedFile]) -> dict[str, Any]:
    """What is in these logs, as a JSON document; a quantile of nothing is None."""
    turns = [turn for file in files for turn in file.turns]
    jobs = jobs_among(turns)
    pairs = [pair for job in jobs.values() for pair in pairwise(job)]
    kept = [_kept_tokens(*pair) / pair[0].context_tokens for pair in pairs]
    commands = (command_key(turn.command) for turn in turns if turn.command is not None)
    values: dict[str, Sequence[float]] = {
        "turns": [len(job) for job in jobs.values()],
        "first_prompt_tokens": [job[0].prompt_tokens for job in jobs.values()],
        "last_prompt_tokens": [job[-1].prompt_tokens for job in jobs.values()],
        "output_tokens": [turn.output_tokens for turn in turns],
        "tool_s": [turn.tool_s for turn in turns if turn.tool_s is not None],
        "kept_share": kept,
    }
    return {
        "kinds": dict(Counter(file.kind for file in files)),
        "jobs": len(jobs),
        "sub_agents": sum(job[0].parent_job_id is not None for job in jobs.values()),
        "turns": len(turns),
        "tools": dict(Counter(commands).most_common(MAX_TOOLS)),
        "quantiles": {
            name: [quantile(found, share) for share in SHARES] for name, found in values.items()
        },
        "later_turns": len(pairs),
        "broken_turns": sum(share < WHOLE for share in kept),
    }


def summary(found: Mapping[str, Any]) -> str:
    """The document as a few lines and a table."""
    kinds = ", ".join(f"{number} {kind}" for kind, number in found["kinds"].items())
    tools = ", ".join(f"{tool} {number}" for tool, number in found["tools"].items())
    rows = []
    for name, numbers in found["quantiles"].items():
        form = ".0%" if name == "kept_share" else ".1f" if name.endswith("_s") else ",.0f"
        rows.append((name.replace("_", " "), *(cell(number, form) for number in numbers)))
    return (
        f"{found['jobs']} jobs, {found['sub_agents']} of them sub-agents, {found['turns']} turns; "
        f"files: {kinds}\n\n"
        f"{text_table(('', *(f'p{share * 100:.0f}' for share in SHARES)), rows)}\n\n"
        f"tools: {tools or 'none'}\n"
        f"{found['broken_turns']} of {found['later_turns']} later prompts do not go on from the "
        "context before them (`agentkv explain` says which)"
    )


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
