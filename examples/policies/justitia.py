"""ORACLE: jobs are served whole, in the order in which fair sharing would have ended them.

Source: Justitia (arXiv 2510.17015). A turn with a prompt of p tokens and d generated ones costs
p d + d^2 / 2 token-steps of memory; a job, the sum. A virtual clock runs at capacity over the jobs
that are active; a job's virtual end is the clock at its arrival plus its cost. The earliest goes
first, the latest is preempted first.

The oracle: the cost of each job must be known when it arrives, which the paper's predictor guesses.
With `turns_file` it is the truth: the turns.jsonl of a run of the same jobs, as
`agentkv simulate --out` or `agentkv bench` writes it. Without, or for a job that is not in it, the
job's `expected_turns` tag times the mean cost of the turns seen, with 10 turns if it has no tag.
Compare rules that know nothing with this one as a bound only.

Left open: steps per second, by which seconds become token-steps of the clock; a setting here.
Not in it: the predictor, and noise on the truth. KV is left to the cache.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from pydantic import Field

from agentkv.policies import UNPINNED, Job, Policy, Rank, Settings, Turn

ASSUMED_TURNS = 10


class JustitiaSettings(Settings):
    turns_file: str | None = None
    """turns.jsonl of a run of the same jobs."""
    steps_per_s: float = Field(50.0, gt=0)
    """Steps of the engine in a second, as the virtual clock assumes them."""


def turn_cost(prompt_tokens: float, output_tokens: float) -> float:
    """Token-steps that a turn's KV fills memory for."""
    return prompt_tokens * output_tokens + output_tokens**2 / 2


def true_costs(path: Path) -> dict[str, float]:
    """Cost of each job of a run."""
    costs: defaultdict[str, float] = defaultdict(float)
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        costs[row["job_id"]] += turn_cost(row["prompt_tokens"], row["output_tokens"])
    return dict(costs)


class Justitia(Policy):
    """Virtual finish times of jobs whose cost is known."""

    settings_class = JustitiaSettings
    settings: JustitiaSettings

    def __init__(self, settings: Settings, pool_tokens: int) -> None:
        super().__init__(settings, pool_tokens)
        path = self.settings.turns_file
        self._costs = true_costs(Path(path)) if path is not None else {}
        self._seen_cost = 0.0
        self._num_seen = 0
        self._virtual = 0.0
        self._virtual_s: float | None = None
        self._ends: dict[str, float] = {}
        """Virtual end of each active job."""

    def cost_of(self, job: Job) -> float:
        """The whole job's cost in token-steps."""
        known = self._costs.get(job.job_id)
        if known is not None:
            return known
        mean_cost = self._seen_cost / self._num_seen if self._num_seen else 1.0
        return mean_cost * (job.expected_turns or ASSUMED_TURNS)

    def virtual_end(self, job: Job) -> float:
        """Decided once, at the job's first turn."""
        if job.job_id not in self._ends:
            self._advance()
            self._ends[job.job_id] = self._virtual + self.cost_of(job)
        return self._ends[job.job_id]

    def _advance(self) -> None:
        """Let the virtual clock run up to now, at the share that each active job has had."""
        now_s = self.engine.now_s
        if self._virtual_s is not None:
            capacity = self.pool_tokens * self.settings.steps_per_s
            self._virtual += (now_s - self._virtual_s) * capacity / max(1, len(self._ends))
        self._virtual_s = now_s

    def rank(self, turn: Turn, *, is_preempted: bool, is_pinned: bool) -> Rank:
        return (UNPINNED, self.virtual_end(turn.job), turn.order)

    def victim_rank(self, turn: Turn) -> Rank:
        return (UNPINNED, self.virtual_end(turn.job), turn.order)

    def sorts_running(self) -> bool:
        return True

    def turn_finished(self, turn: Turn, served_s: float) -> None:
        output_tokens = max(0, turn.job.context_tokens - turn.num_prompt_tokens)
        self._seen_cost += turn_cost(turn.num_prompt_tokens, output_tokens)
        self._num_seen += 1

    def job_ended(self, job: Job) -> None:
        self._advance()
        self._ends.pop(job.job_id, None)
