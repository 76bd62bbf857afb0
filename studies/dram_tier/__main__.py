"""Bounds what another order of eviction in the DRAM tier, and a prefetch from it, could gain.

`python -m studies.dram_tier order` plays the same jobs with a tier of a quarter of what they hold:
vLLM's order (least recently used), the contexts of ended jobs first, and a tier for all.
`python -m studies.dram_tier prefetch` plays long contexts over slow links: loads as they are, loads
that began when the tool before them began (no prefetch can begin earlier; the memory for them is
not counted), and loads that take no time. All are simulated, under `agentkv`. The last line on
standard output is one JSON document. See README.md.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentkv.evals.options import positive, whole_number
from agentkv.evals.outcomes import JobOutcome, RunOutcome
from agentkv.evals.simulator.dram_tier import DramTier, PcieLink
from agentkv.evals.simulator.engine import ContextHashes, SimulatedEngine
from agentkv.evals.simulator.machine import GIB, Limits, make_machine
from agentkv.evals.simulator.run import RunOptions, Simulation
from agentkv.evals.simulator.simulate import policy_entry
from agentkv.evals.summary import Spread, summarize
from agentkv.evals.tables import text_table
from agentkv.evals.workload.workloads import make_workload
from agentkv.policies.names import simulated_policy

POLICY = "agentkv+offload"
FOR_ALL_GIB = 512.0
"""More than all contexts of any run here."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Jobs, the pool of an H100, and the tier."""

    workload: dict[str, Any]
    num_blocks: int
    dram_gib: float
    gb_s: float
    block_tokens: int = 16


SMALL_TIERS = {
    "swebench": Scene({"num_jobs": 64, "concurrency": 20, "max_turns": 15}, 2500, 6.0, 25.0),
    "mixed": Scene({"num_jobs": 96, "concurrency": 30, "max_turns": 15}, 2500, 6.0, 25.0),
}
"""Twenty jobs of `swebench` hold 20 GiB at their end, the thirty of `mixed`, half of which are
conversations without tags, 16 GiB; the pool has room for 5 GiB."""
LONG_CONTEXTS = Scene(
    {"num_jobs": 16, "concurrency": 8, "max_turns": 10, "token_scale": 16.0}
    | {"max_context_tokens": 128_000},
    num_blocks=6_000,
    dram_gib=FOR_ALL_GIB,
    gb_s=5.0,
    block_tokens=64,
)
"""Jobs of `swebench` with sixteen times the tokens, some 95,000 at their end, eight at once in a
pool of 384,000."""


class EndedFirst(DramTier):
    """Evicts the contexts of jobs that have ended before all others."""

    def end(self, hashes: ContextHashes, num_tokens: int) -> None:
        """No turn of this job will come."""
        for block_hash in hashes.up_to(num_tokens):
            if block_hash in self._held:
                self._held.move_to_end(block_hash, last=False)


class ForeseenLink(PcieLink[str]):
    """Loads begin when the tool before them began, behind other loads of that time."""

    def __init__(self, bytes_per_s: float, engine: SimulatedEngine) -> None:
        super().__init__(bytes_per_s)
        self._engine = engine

    def start(self, item: str, num_bytes: int, now_s: float) -> None:
        turns = self._engine.turns[item].owner.outcomes
        began_s = turns[-1].ended_s if turns else now_s
        super().start(item, num_bytes, min(now_s, began_s))


def play(name: str, scene: Scene, seed: int, kind: str) -> dict[str, Any]:
    """The figures of one run; `kind` is one of ORDERS or PREFETCHES."""
    limits = Limits(num_blocks=scene.num_blocks, block_tokens=scene.block_tokens)
    machine = make_machine("h100", None, limits)
    machine = replace(machine, pcie_bytes_s=math.inf if kind == "no time" else scene.gb_s * 1e9)
    workload = make_workload(name, seed=seed, **scene.workload)
    dram_gib = FOR_ALL_GIB if kind == "a tier for all" else scene.dram_gib
    simulation = Simulation(
        workload, machine, simulated_policy(POLICY), RunOptions(dram_gib=dram_gib)
    )
    engine = simulation.engine
    tier = EndedFirst(int(dram_gib * GIB / machine.block_bytes))
    numbers = {plan.job_id: number for number, plan in enumerate(workload.jobs)}

    def job_ended(job: JobOutcome, _: int) -> None:
        last = job.turns[-1]
        hashes = ContextHashes(numbers[job.job_id], machine.block_tokens)
        tier.end(hashes, last.prompt_tokens + last.output_tokens)

    if kind == "foreseen":
        engine.link = ForeseenLink(machine.pcie_bytes_s, engine)
    if kind == "ended jobs first":
        engine.scheduler.connector.configure(tier, machine.block_tokens)
        result = simulation.run(on_job_end=job_ended)
    else:
        result = simulation.run()
    run = RunOutcome(POLICY, dict(scene.workload), result.jobs, result.counters)
    return policy_entry(summarize(run), result.counters)


ORDERS = ("least recently used", "ended jobs first", "a tier for all")
PREFETCHES = ("as it is", "foreseen", "no time")


def units(options: argparse.Namespace) -> Iterator[tuple[str, Scene, str]]:
    """What to play: workload, scene and kind, with the one to compare with first."""
    if options.question == "order":
        for name, scene in SMALL_TIERS.items():
            for kind in ORDERS:
                yield name, scene, kind
    else:
        for gb_s in options.gb_s or (5.0, 2.5):
            for kind in PREFETCHES:
                yield "swebench", replace(LONG_CONTEXTS, gb_s=gb_s), kind


HEADER = (
    *("workload", "GB/s", "kind", "n", "mean s", "of the first", "p99 of it"),
    *("recomputed", "loaded"),
)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="studies.dram_tier", description=__doc__.splitlines()[0])
    parser.add_argument("question", choices=("order", "prefetch"))
    parser.add_argument("--seeds", type=whole_number(1), default=3, metavar="N", help="0 to N-1")
    parser.add_argument("--gb-s", type=positive, action="append", metavar="X", help="of prefetch")
    options = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    first: list[dict[str, Any]] = []
    table: list[list[str]] = []
    for name, scene, kind in units(options):
        found = []
        for seed in range(options.seeds):
            found.append(play(name, scene, seed, kind))
            facts = {"workload": name, "gb_s": scene.gb_s, "kind": kind, "seed": seed}
            rows.append(facts | found[-1])
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        if kind in (ORDERS[0], PREFETCHES[0]):
            first = found
        pairs = list(zip(found, first, strict=True))
        table.append(
            [
                *(name, f"{scene.gb_s:g}", kind, str(len(found))),
                _spread([each["mean_s"] for each in found], ".1f"),
                *(
                    _spread([ours[key] / theirs[key] for ours, theirs in pairs], ".3f")
                    for key in ("mean_s", "p99_s")
                ),
                _spread([each["recomputed_tokens"] for each in found], ",.0f"),
                _spread([each.get("reloaded_tokens", 0) for each in found], ",.0f"),
            ]
        )
    print(text_table(HEADER, table, left=3, rule=True))
    print(json.dumps({"question": options.question, "policy": POLICY, "rows": rows}))
    return 0


def _spread(values: Sequence[float], form: str) -> str:
    spread = Spread.of(values)
    assert spread is not None
    return f"{spread.mean:{form}} ({spread.least:{form}}-{spread.most:{form}})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
