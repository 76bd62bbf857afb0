"""Both tenants' jobs and the pools of the study, the policies, and the order they are played in.

Not in `__main__`, whose names processes that are started by it do not find. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product

from agentkv.evals.outcomes import RunOutcome
from agentkv.evals.simulator.cost import Batch, CostModel
from agentkv.evals.simulator.machine import Limits, Machine, make_machine
from agentkv.evals.summary import summarize
from agentkv.evals.workload.plans import Workload, deal_jobs
from agentkv.evals.workload.workloads import make_workload
from agentkv.integrations.vllm.retention import ClientPlace
from agentkv.integrations.vllm.retention.shares import ClientShares
from agentkv.policies.names import simulated_policy

from ..units import Row

HEAVY, LIGHT = "heavy", "light"
LOADS = {HEAVY: 10.0, LIGHT: 1.0}
POLICIES = ("fcfs", "continuum:paper", "context_serve", "agentkv")
MEMORY_ALONE, ORDER_ALONE = ABLATIONS = "agentkv, memory alone", 'agentkv{"client_share":1}'
"""Without the order by service; and with a share of memory that nobody exceeds."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Jobs of both tenants, at a rate of both together; pools in blocks."""

    num_jobs: int
    jps: float
    pools: tuple[int, ...]


SETTINGS = {
    "bfcl": Setting(165, 2.3, (1550, 775)),
    "swebench": Setting(110, 1.0, (3400, 1700)),
}
"""Twice the rate at which the tournament's jobs arrive, on its two smaller pools."""
ABLATED = "bfcl"


@dataclass(frozen=True, slots=True)
class SlowerCost:
    """The steps of a machine of which one has a part only."""

    whole: CostModel
    factor: float

    def step_s(self, batch: Batch) -> float:
        return self.factor * self.whole.step_s(batch)


@dataclass(frozen=True, slots=True)
class Unit:
    """One policy, with one seed of a workload on one pool."""

    workload: str
    blocks: int
    seed: int
    policy: str

    def facts(self) -> Row:
        """All that decides the unit's result, except the code and its setting."""
        return asdict(self)

    @property
    def key(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return f"{self.workload}, {self.blocks} blocks, seed {self.seed}, {self.policy}"


def units(workloads: Sequence[str], seeds: Sequence[int]) -> Iterator[Unit]:
    """Seed by seed, all policies of a pool together, so that what is cut short has whole pools."""
    for seed, workload in product(seeds, workloads):
        policies = (*POLICIES, *ABLATIONS) if workload == ABLATED else POLICIES
        for blocks, policy in product(SETTINGS[workload].pools, policies):
            yield Unit(workload, blocks, seed, policy)


class MemoryShares(ClientShares):
    """Memory is shared by weight, but who was served less is not next because of that."""

    def place(self, client: str) -> ClientPlace:
        is_above, _ = super().place(client)
        return is_above, 0.0


def half_of(machine: Machine) -> Machine:
    """A machine with half the memory, which takes twice as long for everything."""
    return replace(
        machine, num_blocks=1 + (machine.num_blocks - 1) // 2, cost=SlowerCost(machine.cost, 2.0)
    )


def simulate(unit: Unit) -> Row:
    """Jobs of both tenants together, and of the light one alone on half the machine."""
    setting = SETTINGS[unit.workload]
    machine = make_machine("h100", None, Limits(num_blocks=unit.blocks))
    made = make_workload(
        unit.workload,
        seed=unit.seed,
        num_jobs=setting.num_jobs,
        jps=setting.jps,
        max_context_tokens=(unit.blocks - 1) // 2 * machine.block_tokens,
    )
    both = deal_jobs(made, LOADS)
    alone = replace(both, jobs=tuple(job for job in both.jobs if job.client == LIGHT))
    shared, half = _play(unit, both, machine), _play(unit, alone, half_of(machine))
    return {
        **{name: shared[name] for name in ("jobs", "completed", "mean_s", "p99_s", "preemptions")},
        "clients": shared["clients"],
        "alone_on_half": half["clients"][LIGHT],
    }


def _play(unit: Unit, workload: Workload, machine: Machine) -> Row:
    from agentkv.evals.simulator.run import Simulation

    is_ablated = unit.policy == MEMORY_ALONE
    choice = simulated_policy("agentkv" if is_ablated else unit.policy)
    simulation = Simulation(workload, machine, choice)
    if is_ablated:
        simulation.engine.scheduler.retention.admission.shares.__class__ = MemoryShares
    result = simulation.run()
    return summarize(RunOutcome(unit.policy, {}, result.jobs, result.counters))
