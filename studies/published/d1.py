"""`python studies/published/d1.py OUTPUT_MEAN [SEED] > TRACE`: jobs as published for D1 to D3.

100 jobs of 18 turns with tools of 1 s. Prompts grow from 2,100 tokens, less each turn, to a median
of 6,945; outputs are log-normal with median 30 and the mean given (30: all equal). Source of the
figures: README.md; the shape of growth and of outputs is assumed.
"""

from __future__ import annotations

import json
import math
import random
import sys

NUM_JOBS, NUM_TURNS = 100, 18
FIRST_TOKENS, GROWN_TOKENS, GROWTH_TURNS = 2_100, 6_300, 5.0
GROWTH_SIGMA = 0.15
OUTPUT_MEDIAN = 30


def main(output_mean: float, *seed: str) -> None:
    """Print a line a turn."""
    rng = random.Random(" ".join(["d1", str(output_mean), *seed]))
    sigma = math.sqrt(2.0 * math.log(output_mean / OUTPUT_MEDIAN))
    for job in range(NUM_JOBS):
        grown_tokens = GROWN_TOKENS * rng.lognormvariate(0.0, GROWTH_SIGMA)
        for turn in range(NUM_TURNS):
            grown = grown_tokens * (1.0 - math.exp(-turn / GROWTH_TURNS))
            line = {
                "job_id": f"job{job}",
                "turn": turn,
                "prompt_tokens": round(FIRST_TOKENS + grown),
                "output_tokens": max(1, round(OUTPUT_MEDIAN * rng.lognormvariate(0.0, sigma))),
                "command": "sleep 1",
                "tool_s": 1.0,
            }
            print(json.dumps(line))


if __name__ == "__main__":
    main(float(sys.argv[1]), *sys.argv[2:])
