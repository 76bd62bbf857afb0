"""The policies, loads and pools of the tournament, and the order in which they are played.

A regime is a workload on a pool, with or without a DRAM tier; a unit is one policy in one regime
with one seed. Knows nothing of files. README.md says how loads and pools were chosen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agentkv.evals.outcomes import JobOutcome, RunOutcome
from agentkv.evals.simulator.machine import Limits, Machine, alone_s, make_machine
from agentkv.evals.simulator.simulate import policy_entry
from agentkv.evals.summary import summarize
from agentkv.evals.workload.plans import Workload, with_children
from agentkv.evals.workload.workloads import make_workload
from agentkv.policies.names import PolicyChoice, simulated_policy

from ..policy_grid.policies import LOSSLESS, GridPolicy
from ..units import Row

RULES = Path(__file__).parents[2] / "examples/policies"
STOCK, OURS, ORACLE = "fcfs", "agentkv", "Justitia{oracle}"
"""The oracle knows each job's true cost, so it is shown as a bound and wins nothing."""
SHIPPED = (STOCK, "continuum:paper", "continuum:released", "context_serve", OURS)
PUBLISHED = (
    *("infercept.py:InferCept", "autellix.py:Autellix", "turn_priority.py:TurnPriority"),
    *("thunder_agent.py:ThunderAgent", 'thunder_agent.py:ThunderAgent{"rules":"released"}'),
    *("progress_ttl.py:ProgressTTL", "mori.py:Mori", "concur.py:Concur", "vtc.py:VTC"),
    *("cachewise.py:CacheWise", "soft_retention.py:SoftRetention", "tail_lru.py:TailLRU"),
    *("queue_informed.py:QueueInformed", "pin_forever.py:PinForever", "justitia.py:Justitia"),
)
ENTRANTS = (*SHIPPED, *PUBLISHED, ORACLE)
GATED = PUBLISHED[3:8]
"""They make turns wait, at most `force_resume_s`."""
LIMITS_S, DEFAULT_LIMIT_S = (10, 30, 100, 300), 1800
"""Values of the sweep, and the default."""
BOUNDS = tuple(f"{name}{LOSSLESS}" for name in (STOCK, OURS, ORACLE))
"""What is evicted comes back in no time: what an order of jobs could gain by never losing KV."""
PARTS = ("main", "sweep", "tier", "bound")
POOLS = ("roomy", "short", "scarce")


@dataclass(frozen=True, slots=True)
class Setting:
    """The load of a workload, `num_jobs` at a rate or a number at once, and its pools in blocks."""

    num_jobs: int
    pools: tuple[int, int, int]
    jps: float | None = None
    concurrency: int | None = None


SETTINGS: Mapping[str, Setting] = {
    "swebench": Setting(40, (7000, 3400, 1700), jps=0.5),
    "longtail": Setting(40, (7000, 3300, 1650), jps=0.32),
    "bfcl": Setting(40, (3300, 1550, 775), jps=1.14),
    "deep-research": Setting(12, (24_000, 10_000, 6500), jps=0.1),
    "coding": Setting(12, (9000, 5000, 3500), jps=0.07),
    "mixed": Setting(60, (7000, 3400, 1700), jps=1.0),
    "rollouts": Setting(16, (11_000, 4000, 2700), concurrency=16),
    "burst": Setting(40, (7000, 3400, 1700), jps=0.5),
}
SWEPT_POOLS = tuple((name, pool) for name in ("swebench", "longtail") for pool in POOLS[1:])


@dataclass(frozen=True, slots=True)
class Unit:
    """One simulation."""

    workload: str
    pool: str
    has_tier: bool
    seed: int
    policy: str

    @property
    def setting(self) -> Setting:
        return SETTINGS[self.workload]

    @property
    def name(self) -> str:
        return label_of(self.policy)

    def facts(self) -> Row:
        """All that decides the unit's result, except the code."""
        place = {name: getattr(self, name) for name in ("workload", "pool", "has_tier", "seed")}
        setting = asdict(self.setting)
        blocks = setting.pop("pools")[POOLS.index(self.pool)]
        return {**place, "policy": self.name, **setting, "pool_blocks": blocks}

    @property
    def key(self) -> str:
        text = json.dumps(self.facts(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        tier = " with a tier" if self.has_tier else ""
        return f"{self.workload}, {self.pool} pool{tier}, seed {self.seed}, {self.name}"


def label_of(policy: str) -> str:
    """The policy as rows and tables call it: by its class, if it has one."""
    return policy.rpartition(".py:")[2]


def units(parts: Sequence[str], seeds: Sequence[int], workloads: Sequence[str]) -> Iterator[Unit]:
    """Part by part, and seed by seed, so that what is cut short has whole regimes."""
    for part, seed, workload, pool in product(parts, seeds, workloads, POOLS):
        if part == "bound":
            names = list(BOUNDS)
        elif part != "sweep":
            names = [name for name in ENTRANTS if part == "main" or name != ORACLE]
        elif (workload, pool) in SWEPT_POOLS:
            names = [with_limit(name, limit_s) for name in GATED for limit_s in LIMITS_S]
        else:
            names = []
        for name in names:
            yield Unit(workload, pool, part == "tier", seed, name)


def with_limit(policy: str, limit_s: int) -> str:
    """The gated policy with another limit of forced resume."""
    name, _, given = policy.partition("{")
    settings = json.loads("{" + given if given else "{}") | {"force_resume_s": limit_s}
    return name + json.dumps(settings, sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=4)
def _played(name: str, pool: str, seed: int) -> tuple[Workload, Machine, dict[str, float]]:
    """The jobs, the machine, and the seconds that each job takes alone on it."""
    setting = SETTINGS[name]
    machines = [make_machine("h100", None, Limits(num_blocks=blocks)) for blocks in setting.pools]
    workload = make_workload(
        name,
        seed=seed,
        num_jobs=setting.num_jobs,
        jps=setting.jps,
        concurrency=setting.concurrency,
        max_context_tokens=min(machine.max_model_tokens for machine in machines),
    )
    machine = machines[POOLS.index(pool)]
    return workload, machine, {job.job_id: alone_s(job, machine) for job in workload.jobs}


def simulate(unit: Unit) -> Row:
    """Figures of the unit's jobs under its policy, to four digits."""
    from agentkv.evals.simulator.run import RunOptions, Simulation

    workload, machine, alone = _played(unit.workload, unit.pool, unit.seed)
    machine, dram_gib = GridPolicy(unit.policy).tier(machine, RunOptions().dram_gib)
    with TemporaryDirectory() as folder:
        choice = _choice(unit, workload, Path(folder))
        options = RunOptions(dram_gib=dram_gib)
        result = Simulation(workload, machine, choice, options, alone_s=alone).run()
    run = RunOutcome(unit.name, {}, result.jobs, result.counters)
    entry = policy_entry(summarize(run), result.counters)
    computed = result.counters["computed_tokens"]
    found = {
        **entry,
        "recomputed_share": entry["recomputed_tokens"] / computed if computed else 0.0,
        "jain": jain_index(result.jobs),
    }
    return {name: _short(value) for name, value in found.items()}


def _choice(unit: Unit, workload: Workload, folder: Path) -> PolicyChoice:
    """The policy, a rule of the field from its file, and for the oracle the truth of the jobs."""
    entrant = unit.policy.removesuffix(LOSSLESS)
    name = PUBLISHED[-1] if entrant == ORACLE else entrant
    tier = "+offload" if unit.has_tier or entrant != unit.policy else ""
    choice = simulated_policy(f"{RULES}/{name}{tier}" if ".py:" in name else name + tier)
    if entrant != ORACLE:
        return choice
    turns = [
        {
            "job_id": job.job_id,
            "prompt_tokens": job.prompt_tokens(number),
            "output_tokens": turn.output_tokens,
        }
        for job in with_children(workload.jobs)
        for number, turn in enumerate(job.turns)
    ]
    path = folder / "turns.jsonl"
    path.write_text("".join(f"{json.dumps(turn)}\n" for turn in turns))
    return replace(choice, settings={**(choice.settings or {}), "turns_file": str(path)})


def jain_index(jobs: Sequence[JobOutcome]) -> float | None:
    """Jain's index of the jobs' speeds, time alone over time taken: 1 if all are slowed alike.

    Source: R. Jain, D. Chiu, W. Hawe, DEC-TR-301, 1984.
    """
    done = [job for job in jobs if job.status == "done" and job.is_whole]
    speeds = [job.alone_s / job.duration_s for job in done if job.alone_s]
    squares = sum(speed**2 for speed in speeds)
    return sum(speeds) ** 2 / (len(speeds) * squares) if squares else None


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
