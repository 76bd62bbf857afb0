"""`python -m studies.tenants`: what a tenant of a tenth of the load gets next to a greedy one.

A unit is one policy with one seed on one pool: the jobs of both tenants together, and then those of
the light one alone on half the machine, which has half the blocks and takes twice as long for each
step. Rows are written as units end; the tables are made from the rows alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

from agentkv.evals.options import whole_number
from agentkv.evals.outcomes import RunOutcome
from agentkv.evals.rows import write_whole
from agentkv.evals.simulator.cost import Batch, CostModel
from agentkv.evals.simulator.machine import Limits, Machine, make_machine
from agentkv.evals.simulator.policies import parse_policy
from agentkv.evals.summary import Spread, summarize
from agentkv.evals.tables import markdown_table
from agentkv.evals.workload.plans import Workload, deal_jobs
from agentkv.evals.workload.workloads import make_workload
from agentkv.integrations.vllm.retention import ClientPlace
from agentkv.integrations.vllm.retention.shares import ClientShares

from ..units import Row, add_run_options, exit_status, last_rows, play_missing, print_result

HERE = Path(__file__).parent
ROWS_FILE, TABLES_FILE = "rows.jsonl", "tables.md"
PROGRAM = "python -m studies.tenants"
HEAVY, LIGHT = "heavy", "light"
LOADS = {HEAVY: 10.0, LIGHT: 1.0}
GOAL = 1.15
POLICIES = ("fcfs", "continuum:paper", "context_serve", "agentkv")
MEMORY_ALONE, ORDER_ALONE = ABLATIONS = "agentkv, memory alone", 'agentkv{"client_share":1}'
"""Without the order by service; and with a share of memory that nobody exceeds."""
_NEEDED = ("workload", "blocks", "policy", "seed", "error")


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
    choice = parse_policy("agentkv" if is_ablated else unit.policy)
    simulation = Simulation(workload, machine, choice)
    if is_ablated:
        simulation.engine.scheduler.retention.admission.shares.__class__ = MemoryShares
    result = simulation.run()
    return summarize(RunOutcome(unit.policy, {}, result.jobs, result.counters))


def ratio(row: Row) -> float:
    """Mean duration of the light tenant's jobs, over that alone on half the machine."""
    return float(row["clients"][LIGHT]["mean_s"] / row["alone_on_half"]["mean_s"])


def table(rows: Sequence[Row]) -> str:
    """A line for each policy on each pool, over all seeds."""
    titles = ["workload", "blocks", "policy", "seeds", "light, s", "alone on half, s"]
    titles += ["ratio: mean", "from, to", "heavy, s", "all, s"]
    lines = []
    groups: dict[tuple[str, int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["workload"], row["blocks"], row["policy"]), []).append(row)
    order = [*POLICIES, *ABLATIONS]
    places = sorted(groups, key=lambda place: (place[0], -place[1], order.index(place[2])))
    for workload, blocks, policy in places:
        same = groups[workload, blocks, policy]
        means = [
            Spread.of([row["clients"][LIGHT]["mean_s"] for row in same]),
            Spread.of([row["alone_on_half"]["mean_s"] for row in same]),
            Spread.of([ratio(row) for row in same]),
            Spread.of([row["clients"][HEAVY]["mean_s"] for row in same]),
            Spread.of([row["mean_s"] for row in same]),
        ]
        light, half, ratios, heavy, both = (spread for spread in means if spread is not None)
        cells = [f"{light.mean:.1f}", f"{half.mean:.1f}", f"{ratios.mean:.2f}"]
        cells += [f"{ratios.least:.2f}, {ratios.most:.2f}", f"{heavy.mean:.1f}", f"{both.mean:.1f}"]
        lines.append([workload, f"{blocks}", policy, f"{len(same)}", *cells])
    return markdown_table(titles, lines, left=3)


def main(argv: Sequence[str] | None = None) -> int:
    """0: all units done; 1: some failed, or it ended early; 2: nothing could be done."""
    return exit_status(PROGRAM, partial(_run, _read_options(argv)))


def _run(options: argparse.Namespace) -> int:
    run: Row = {}
    out = Path(options.out)
    if not options.tables:
        asked = units(options.workloads, options.seeds)
        run = play_missing(asked, simulate, out / ROWS_FILE, options, program=PROGRAM)
    rows = last_rows(out / ROWS_FILE, _NEEDED)
    played = [row for row in rows if row["error"] is None]
    write_whole(out / TABLES_FILE, table(played) + "\n")
    ours = [ratio(row) for row in played if row["policy"] == "agentkv"]
    return print_result(rows, run, worst_ratio=max(ours, default=None))


def _read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The flags; argparse itself exits with status 2 for invalid ones."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    add = parser.add_argument
    names = tuple(SETTINGS)
    add("--workloads", nargs="+", choices=names, default=names, metavar="NAME", help="default: all")
    add("--seeds", type=whole_number(0), nargs="+", default=(0, 1, 2), metavar="N")
    add("--out", default=str(HERE), metavar="DIR", help="rows and table (default: the study's)")
    add("--tables", action="store_true", help="play nothing: the table from the rows alone")
    add_run_options(parser)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
