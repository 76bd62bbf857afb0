"""Plays one unit of the grid: its row, with all that is known of its origin."""

from __future__ import annotations

from agentkv.evals.outcomes import RunOutcome
from agentkv.evals.simulator.simulate import policy_entry
from agentkv.evals.summary import summarize

from ..units import Row
from .grid import StudyPlan, Unit
from .ideals import ideal_entry
from .policies import parse_grid_policy


def make_row(plan: StudyPlan, unit: Unit, found: Row) -> Row:
    """What was found, with all that is known of its origin."""
    return {
        "unit": unit.key(plan.config),
        **unit.facts(),
        "one_x": plan.capacities[unit.tools, unit.pool_blocks].as_dict(),
        **found,
        **plan.metadata,
        "config": dict(plan.config),
    }


def simulate(plan: StudyPlan, unit: Unit) -> Row:
    """Figures of the unit's jobs under its policy, and the counters."""
    from agentkv.evals.simulator.run import RunOptions, Simulation

    policy = parse_grid_policy(unit.policy)
    workload, alone_s = plan.workload(unit)
    machine, dram_gib = policy.tier(plan.machines[unit.pool_blocks], plan.dram_gib)
    if policy.choice is None:
        return ideal_entry(unit.policy, workload, machine, alone_s)
    options = RunOptions(dram_gib=dram_gib, policy_class=policy.policy_class())
    result = Simulation(workload, machine, policy.choice, options, alone_s=alone_s).run()
    described = {"jps": unit.jps, "concurrency": unit.load.concurrency}
    run = RunOutcome(policy.name, described, result.jobs, result.counters)
    return {**policy_entry(summarize(run), result.counters), "counters": result.counters}
