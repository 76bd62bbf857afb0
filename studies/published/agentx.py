"""`python studies/published/agentx.py > TRACE`: jobs as aiperf describes `inference-day-2026`.

All share 32,000 tokens; a twentieth of the turns go back to them. 70% of the gaps are an agent's
tools, the others a person's. Source of the figures: its public description; the number of turns has
the described mean, its spread is chosen, and groups of jobs that share 10,000 tokens more are left
out: in 100 of them two jobs of the same group are seldom there at once.
"""

from __future__ import annotations

import json
import math
import random

NUM_JOBS = 72
SHARED_TOKENS, GROUP_TOKENS, OWN_MEDIAN = 32_000, 10_000, 5_000
TURNS = 9.0, 11.6
NEW_TOKENS, OUTPUT_TOKENS = (4_000.0, 6_000.0), (800.0, 1_000.0)
TOOL_S, PERSON_S = (2.0, 5.0), (15.0, 30.0)
"""Medians and means of log-normals."""
PERSON_SHARE, RESET_SHARE = 0.3, 0.05
MAX_TOKENS = 120_000
"""A job ends before; described are 200,000, the model here takes 131,072."""


def main() -> None:
    """Print a line a turn."""
    rng = random.Random("agentx")

    def draw(median: float, mean: float) -> float:
        return median * rng.lognormvariate(0.0, math.sqrt(2.0 * math.log(mean / median)))

    for job in range(NUM_JOBS):
        context_tokens = first = SHARED_TOKENS + GROUP_TOKENS + round(draw(OWN_MEDIAN, 6_000.0))
        kept_tokens, now_s = None, 0.0
        for turn in range(max(1, round(draw(*TURNS)))):
            output_tokens = max(1, round(draw(*OUTPUT_TOKENS)))
            is_person = rng.random() < PERSON_SHARE
            line = {
                "job_id": f"job{job}",
                "turn": turn,
                "prompt_tokens": context_tokens,
                "output_tokens": output_tokens,
                "command": None if is_person else "tool",
                "tool_s": None if is_person else draw(*TOOL_S),
                "kept_tokens": kept_tokens,
                "sent_s": now_s,
                "ended_s": now_s,
                "shared_tokens": SHARED_TOKENS,
                "shares": "agentx",
            }
            now_s += draw(*PERSON_S) if is_person else float(str(line["tool_s"]))
            kept_tokens = SHARED_TOKENS if rng.random() < RESET_SHARE else None
            before = context_tokens + output_tokens if kept_tokens is None else first
            context_tokens = before + round(draw(*NEW_TOKENS))
            print(json.dumps(line))
            if context_tokens > MAX_TOKENS:
                break


if __name__ == "__main__":
    main()
