"""The engines and trajectories of the study, the policies, and the order they are played in.

Not in `__main__`, whose names processes that are started by it do not find. Knows nothing of files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

from agentkv.evals.outcomes import RunOutcome
from agentkv.evals.simulator.cost import Roofline
from agentkv.evals.simulator.machine import Limits, Machine, make_machine
from agentkv.evals.summary import summarize
from agentkv.evals.workload.workloads import make_workload
from agentkv.policies.names import simulated_policy

from ..policy_grid.policies import LOSSLESS, GridPolicy
from ..units import Row

HERE = Path(__file__).parent
RULES = HERE.parents[1] / "examples/policies"
STOCK, OURS, BATCH = "fcfs", "agentkv", 'agentkv{"goal":"batch"}'
CAPS = tuple(f'{HERE}/cap.py:Cap{{"most":{most}}}' for most in (8, 16, 24, 32, 48))
THUNDER = f"{RULES}/thunder_agent.py:ThunderAgent"
BOUNDS = (f"{STOCK}{LOSSLESS}", f"{BATCH}{LOSSLESS}")
"""No evicted KV is ever recomputed: what is left is the memory for contexts that run at once."""
POLICIES = (STOCK, *CAPS, THUNDER, THUNDER + '{"rules":"released"}', OURS, BATCH, *BOUNDS)


@dataclass(frozen=True, slots=True)
class Regime:
    """Trajectories at once on one engine, and the share of its cards' memory that it may use."""

    num_at_once: int
    memory_share: float
    workload: str = "rollouts"
    num_jobs: int | None = None
    """Default: those of one step."""


REGIMES: Mapping[str, Regime] = {
    "short": Regime(64, 0.8),
    "scarce": Regime(64, 0.65),
    "double": Regime(128, 0.8),
    "partial": Regime(64, 0.8, "partial-rollouts", 128),
}


@dataclass(frozen=True, slots=True)
class Unit:
    """One simulation. A simulated token stands for `tokens_each` tokens."""

    regime: str
    seed: int
    policy: str
    tokens_each: int

    @property
    def name(self) -> str:
        return self.policy.rpartition(".py:")[2]

    def facts(self) -> Row:
        """All that decides the unit's result, except the code."""
        own = {"regime": self.regime, "seed": self.seed, "policy": self.name}
        return {**own, "tokens_each": self.tokens_each, **asdict(REGIMES[self.regime])}

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(self.facts(), sort_keys=True).encode()).hexdigest()[:12]

    def __str__(self) -> str:
        return f"{self.regime}, seed {self.seed}, {self.name}"


def engine_of(regime: Regime, tokens_each: int) -> Machine:
    """Qwen3-32B on two H100s; all that counts tokens counts `tokens_each` of them as one.

    A step takes as long as that many would, so fewer steps are simulated.
    """
    limits = Limits(num_gpus=2, memory_utilization=regime.memory_share)
    machine = make_machine("h100", "qwen3-32b", limits)
    cost, num_blocks = machine.cost, machine.num_blocks // tokens_each
    assert isinstance(cost, Roofline)
    return replace(
        machine,
        cost=replace(
            cost,
            kv_token_bytes=cost.kv_token_bytes * tokens_each,
            bytes_per_s=cost.bytes_per_s / tokens_each,
            flop_per_s=cost.flop_per_s / tokens_each,
            pair_flop=cost.pair_flop * tokens_each,
            fixed_s=cost.fixed_s * tokens_each,
            sequence_s=cost.sequence_s * tokens_each,
        ),
        num_blocks=num_blocks,
        block_bytes=machine.block_bytes * tokens_each,
        max_num_seqs=regime.num_at_once,
        max_num_batched_tokens=machine.max_num_batched_tokens // tokens_each,
        max_model_tokens=min(
            machine.max_model_tokens // tokens_each, (num_blocks - 1) * machine.block_tokens
        ),
    )


def simulate(unit: Unit) -> Row:
    """Figures of the unit's trajectories under its policy."""
    from agentkv.evals.simulator.run import RunOptions, Simulation

    regime = REGIMES[unit.regime]
    machine = engine_of(regime, unit.tokens_each)
    workload = make_workload(
        regime.workload,
        seed=unit.seed,
        num_jobs=regime.num_jobs or regime.num_at_once,
        concurrency=regime.num_at_once,
        token_scale=1.0 / unit.tokens_each,
        max_context_tokens=machine.max_model_tokens,
    )
    machine, dram_gib = GridPolicy(unit.policy).tier(machine, RunOptions().dram_gib)
    entrant = unit.policy.removesuffix(LOSSLESS)
    choice = simulated_policy(entrant + ("+offload" if entrant != unit.policy else ""))
    result = Simulation(workload, machine, choice, RunOptions(dram_gib=dram_gib)).run()
    described = {"jobs_per_step": workload.jobs_per_step}
    summary = summarize(RunOutcome(unit.name, described, result.jobs, result.counters))
    return {
        "jobs": summary["jobs"],
        "completed": summary["completed"],
        "step_s": summary["step_mean_s"],
        "steps": summary["steps"],
        "last_s": summary["max_s"],
        "mean_s": summary["mean_s"],
        "tokens_per_s": summary["tokens_per_s"] * unit.tokens_each,
        "hit_rate": summary["hit_rate"],
        "recomputed_share": result.counters["recomputed_tokens"]
        / result.counters["computed_tokens"],
    }


def units(
    regimes: Sequence[str],
    seeds: Sequence[int],
    tokens_each: int,
    names: Sequence[str] | None = None,
) -> Iterator[Unit]:
    """Seed by seed, all policies of a regime together."""
    for seed, regime, policy in product(seeds, regimes, POLICIES):
        unit = Unit(regime, seed, policy, tokens_each)
        is_played = regime != "partial" or policy not in BOUNDS  # no tier outlives an update
        if is_played and (names is None or unit.name in names):
            yield unit
