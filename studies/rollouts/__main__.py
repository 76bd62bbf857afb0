"""`python -m studies.rollouts`: when does the last trajectory of a training step end?

A simulated engine of SkyRL's recipe for coding agents plays the same trajectories under stock, caps
on concurrency, ThunderAgent's rule, `agentkv`, and `agentkv` with the goal "batch". Rows are
written as runs end; the tables are made from the rows alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean

from agentkv.evals.options import whole_number
from agentkv.evals.outcomes import RunOutcome
from agentkv.evals.rows import write_whole
from agentkv.evals.simulator.cost import Roofline
from agentkv.evals.simulator.machine import Limits, Machine, make_machine
from agentkv.evals.simulator.policies import parse_policy
from agentkv.evals.summary import summarize
from agentkv.evals.tables import markdown_table
from agentkv.evals.workload.workloads import make_workload

from ..policy_grid.policies import LOSSLESS, GridPolicy
from ..units import Row, add_run_options, exit_status, last_rows, play_missing, print_result

HERE = Path(__file__).parent
ROWS_FILE, TABLES_FILE = "rows.jsonl", "tables.md"
PROGRAM = "python -m studies.rollouts"
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
_NEEDED = ("regime", "seed", "policy", "error")


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
    choice = parse_policy(entrant + ("+offload" if entrant != unit.policy else ""))
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


def units(options: argparse.Namespace) -> Iterator[Unit]:
    """Seed by seed, all policies of a regime together."""
    for seed, regime, policy in product(options.seeds, options.regimes, POLICIES):
        unit = Unit(regime, seed, policy, options.tokens_each)
        is_played = regime != "partial" or policy not in BOUNDS  # no tier outlives an update
        if is_played and (options.policy is None or unit.name in options.policy):
            yield unit


def tables(rows: Sequence[Row]) -> str:
    """A table a regime, in ratios to stock's of the same seed: mean, least and most."""
    parts = []
    for regime in REGIMES:
        of = {(row["policy"], row["seed"]): row for row in rows if row["regime"] == regime}
        lines = []
        for policy in dict.fromkeys(Unit(regime, 0, policy, 1).name for policy in POLICIES):
            pairs = [
                (row, of[STOCK, seed])
                for (name, seed), row in of.items()
                if name == policy and (STOCK, seed) in of
            ]
            if pairs:
                lines.append([f"`{policy}`", str(len(pairs)), *_cells(pairs)])
        if lines:
            header = ["policy", "seeds", "step s", "step / stock", "last trajectory", "mean"]
            parts.append(
                f"**{regime}** ({_describe(REGIMES[regime])})\n\n"
                + markdown_table([*header, "tokens/s", "hits", "recomputed"], lines)
            )
    return "\n\n".join(parts) + "\n"


def _cells(pairs: Sequence[tuple[Row, Row]]) -> Iterator[str]:
    yield f"{mean(own['step_s'] for own, _ in pairs):.0f}"
    for key in ("step_s", "last_s", "mean_s", "tokens_per_s"):
        ratios = [own[key] / stock[key] for own, stock in pairs]
        yield f"{mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    for key in ("hit_rate", "recomputed_share"):
        yield f"{mean(own[key] for own, _ in pairs):.0%}"


def _describe(regime: Regime) -> str:
    kind = "at once, an update after each half" if regime.num_jobs else "a step"
    return f"{regime.num_at_once} trajectories {kind}, memory share {regime.memory_share}"


def main(argv: Sequence[str] | None = None) -> int:
    """0: all runs done; 1: some failed, or it ended early; 2: nothing could be done."""
    return exit_status(PROGRAM, partial(_run, _read_options(argv)))


def _run(options: argparse.Namespace) -> int:
    run: Row = {}
    out = Path(options.out)
    if not options.tables:
        run = play_missing(units(options), simulate, out / ROWS_FILE, options, program=PROGRAM)
    rows = last_rows(out / ROWS_FILE, _NEEDED)
    good = [row for row in rows if row["error"] is None]
    write_whole(out / TABLES_FILE, tables(good))
    return print_result(rows, run)


def _read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The flags; argparse itself exits with status 2 for invalid ones."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Play training steps under stock, caps, ThunderAgent's rule and agentkv.",
        epilog="The last line on standard output is one JSON document. Exit status: 0 all runs "
        "done, 1 some failed or it ended early, 2 bad usage.",
    )
    add = parser.add_argument_group("what is played").add_argument
    names = tuple(REGIMES)
    add("--regimes", nargs="+", choices=names, default=names, metavar="NAME", help="default: all")
    add("--seeds", type=whole_number(0), nargs="+", default=(1, 2, 3), metavar="N")
    add("--policy", action="append", metavar="NAME", help="as in the tables (default: all)")
    each = "tokens that a simulated one stands for (default %(default)s)"
    add("--tokens-each", type=whole_number(1), default=16, metavar="N", help=each)
    add = parser.add_argument_group("files").add_argument
    add("--out", default=str(HERE), metavar="DIR", help="rows and tables (default: the study's)")
    add("--tables", action="store_true", help="play nothing: tables from the rows alone")
    add_run_options(parser)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
