"""Plays turns in one engine until all its stores are full, and checks that memory stops growing.

`python -m tests.soak.engine --turns 72000`, seven minutes. vLLM's real scheduler under `agentkv` on
a clock of its own, without a model: four jobs at a time, a tool with a command of its own after
each turn. The largest store keeps 50,000 turns; after 56,000 the process may grow by 2 MiB. The
last line is one JSON document; exit status 1 if it grew by more.
"""

import argparse
import gc
import json
import random
import sys
from collections.abc import Sequence

import psutil

from agentkv.command_line import whole_number
from agentkv.evals.simulator.vllm_scheduler import quiet_vllm
from agentkv.policies.agentkv import AgentKVPolicy
from agentkv.protocol import ToolEvent
from tests.stepped_engine import SteppedEngine, prompt_of

COMMANDS = ("ls", "pytest", "grep -rn x", "pip install", "npm ci", "sed -n 1,20p", "python")
NUM_JOBS, MAX_TURNS, MAX_TOKENS = 4, 12, 400
SAMPLE_TURNS = 4000
FULL_TURNS = 56_000
MAX_GROWTH_MIB = 2.0


class Jobs:
    """Random jobs, one turn at a time; job ids and commands are never used twice."""

    def __init__(self, seed: int) -> None:
        self._engine = SteppedEngine(
            num_blocks=128,
            policy_class=AgentKVPolicy,
            **{"record_events": 1000, "max_jobs": 100, "max_ttl_s": 30.0},
        )
        self._rng = random.Random(seed)
        self._contexts: dict[str, list[int]] = {}
        self._turns_left: dict[str, int] = {}
        self._num_turns = 0
        self._num_jobs = 0

    def play_turn(self) -> None:
        """Play a turn of a random job, and the tool that follows it."""
        while len(self._contexts) < NUM_JOBS:
            self._start_job()
        job_id = self._rng.choice(list(self._contexts))
        self._turns_left[job_id] -= 1
        is_last = not self._turns_left[job_id]
        said = self._engine.turn(
            self._contexts[job_id][:MAX_TOKENS],
            max_tokens=self._rng.randrange(2, 8),
            job_id=job_id,
            is_last_step=is_last,
        )
        self._num_turns += 1
        if is_last:
            del self._contexts[job_id], self._turns_left[job_id]
            return
        self._run_tool(job_id)
        output = prompt_of(self._rng.randrange(5, 40), salt=self._num_turns)
        self._contexts[job_id] = said + output

    def _start_job(self) -> None:
        self._num_jobs += 1
        job_id = f"job-{self._num_jobs}"
        self._contexts[job_id] = prompt_of(self._rng.randrange(32, 100), salt=self._num_jobs)
        self._turns_left[job_id] = self._rng.randrange(2, MAX_TURNS)

    def _run_tool(self, job_id: str) -> None:
        command = f"{self._rng.choice(COMMANDS)} {self._num_turns}.txt"
        retention = self._engine.scheduler.retention
        retention.tool_signal(job_id, ToolEvent("started", "bash", command))
        self._engine.wait(self._rng.random())
        retention.tool_signal(job_id, ToolEvent("finished", "bash", command))


def main(argv: Sequence[str]) -> int:
    """0: memory has stopped growing; 1: it has not."""
    parser = argparse.ArgumentParser(prog="tests.soak.engine", description=__doc__)
    least = FULL_TURNS + SAMPLE_TURNS
    parser.add_argument("--turns", type=whole_number(least), default=72_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    quiet_vllm()
    jobs, process = Jobs(options.seed), psutil.Process()
    mib: dict[int, float] = {}
    for turn in range(1, options.turns + 1):
        jobs.play_turn()
        if turn % SAMPLE_TURNS == 0:
            gc.collect()
            mib[turn] = round(process.memory_info().rss / 2**20, 1)
            print(f"{turn} turns: {mib[turn]} MiB", file=sys.stderr)
    growth = max(size for turn, size in mib.items() if turn >= FULL_TURNS) - mib[FULL_TURNS]
    print(json.dumps({"turns": options.turns, "rss_mib": mib, "growth_mib": round(growth, 1)}))
    return int(growth > MAX_GROWTH_MIB)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
