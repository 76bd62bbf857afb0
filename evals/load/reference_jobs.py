"""The job of the reference experiment: eight turns that read, search, test and report.

Prompts grow from 92 to 2,915 tokens; tools take 50 to 300 ms, the test run 2 to 5 s.
"""

from __future__ import annotations

import random

from .plans import TurnPlan

PROMPT_TOKENS = (92, 469, 811, 1343, 1655, 2241, 2665, 2915)
"""Source: the reference experiment's A/B run on vLLM-Continuum (RTX 5090, Llama-3.1-8B)."""
OUTPUT_TOKENS = (24, 16, 12, 24, 16, 12, 64, 24)
"""Assumed: the reference tells no output lengths. In proportion to its mean latency by turn at 8
jobs per second (1263, 735, 574, 1005, 749, 641, 3732, 1236 ms); in all what fits its 6.65 s a job
at 2 jobs per second less 3.9 s of tools, at 11 to 14 ms a token."""
TOOLS = (
    ("ls -la", 0.050, 0.150),
    ("cat main.py", 0.050, 0.100),
    ("grep -rn TODO .", 0.050, 0.100),
    ("git status", 0.080, 0.200),
    ("python -m pytest -q", 2.0, 5.0),
    ("cat tests/test_main.py", 0.050, 0.100),
    ("git diff", 0.100, 0.300),
)
"""Command, and the range of its seconds, drawn evenly. Source: the ranges are the reference's."""


def reference_turns(chance: random.Random) -> tuple[TurnPlan, ...]:
    """All jobs are the same but for how long the tools take."""
    turns = []
    context_tokens = 0
    for number, (prompt_tokens, output_tokens) in enumerate(
        zip(PROMPT_TOKENS, OUTPUT_TOKENS, strict=True)
    ):
        command, low_s, high_s = TOOLS[number] if number < len(TOOLS) else ("", 0.0, 0.0)
        added_tokens = prompt_tokens - context_tokens
        tool_s = chance.uniform(low_s, high_s)
        turns.append(TurnPlan(added_tokens, output_tokens, command, tool_s))
        context_tokens = prompt_tokens + output_tokens
    return tuple(turns)
