"""What the simulator expects of the servers that `agentkv compare --gpu` starts.

Twice, where that is possible: from the card's data sheet, and from the times of a server that was
just measured. Called by compare.py; knows nothing of how runs are made or kept.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

import httpx

from agentkv.errors import AgentKVError, InputError
from agentkv.integrations.vllm.serve import value_of
from agentkv.server.random_model import CONFIGS, kv_token_bytes

from ..rows import write_whole
from ..simulator import catalog
from ..simulator.calibrate import StartedAs, measure
from ..simulator.catalog import GPUS, MODELS
from ..simulator.machine import Limits, Machine, make_machine
from ..summary import PolicyResult, Spread
from ..tables import text_table
from ..workload.plans import Workload

CPU_CARD = "cpu"
"""The name of no card: all that a GPU run does, on the CPU build with a tiny model."""
_CPU_BYTES, _GPU_BYTES = 4, 2
"""Of one number of the KV cache: `agentkv serve` has float32 on the CPU build."""
Means = Mapping[str, Mapping[str, float]]
"""Simulated seconds of a mean job, by machine and policy."""


@dataclass(frozen=True, slots=True)
class Card:
    """What --gpu names: a card of the catalog, the file of a profile, or the CPU.

    `profile` is where the times of a measured server go, None if those of `machine` were measured.
    """

    machine: Machine | None
    profile: Path | None
    started_as: StartedAs
    limits: Limits
    num_rounds: int

    def machines(self) -> list[Machine]:
        """The machines to simulate: the data sheet's or the given profile's, and the measured."""
        found = [] if self.machine is None else [self.machine]
        if self.profile is not None and self.profile.exists():
            found.append(make_machine(str(self.profile), None, self.limits))
        return found

    @property
    def is_unmeasured(self) -> bool:
        """True as long as a server must still be measured."""
        return self.profile is not None and not self.profile.exists()

    def calibrate(self, base_url: str) -> None:
        """Measure an idle server and write the profile; says on standard error if it cannot."""
        assert self.profile is not None
        report = partial(print, file=sys.stderr, flush=True)
        try:
            profile = measure(base_url, self.started_as, num_rounds=self.num_rounds, report=report)
            write_whole(self.profile, profile.model_dump_json(indent=1) + "\n")
        except (AgentKVError, httpx.HTTPError, OSError) as error:
            report(f"agentkv compare: not calibrated: {error}")


def make_card(
    name: str, model: str | None, flags: Sequence[str], out: Path, *, num_rounds: int
) -> Card:
    """The card of that name for a model, on servers with these flags; raises InputError."""

    def number(flag: str) -> int | None:
        text = value_of(flags, flag)
        if text is not None and not text.isdecimal():
            raise InputError(f"{flag}: got {text!r}, a whole number is needed")
        return None if text is None else int(text)

    limits = Limits(
        num_blocks=number("--num-gpu-blocks-override"),
        block_tokens=number("--block-size"),
        max_num_seqs=number("--max-num-seqs"),
        max_num_batched_tokens=number("--max-num-batched-tokens"),
        max_model_tokens=number("--max-model-len"),
    )
    machine: Machine | None = None
    if name != CPU_CARD:
        machine = make_machine(name, model if model in MODELS else None, limits)
        if name in GPUS and model not in MODELS:
            machine = None  # the catalog prices no such model
    num_seqs, batch_tokens = catalog.NUM_SEQS, catalog.BATCH_TOKENS
    if machine is not None:
        num_seqs, batch_tokens = machine.max_num_seqs, machine.max_num_batched_tokens
    number_bytes = _CPU_BYTES if name == CPU_CARD else _GPU_BYTES
    started_as = StartedAs(
        f"{name}, measured",
        limits.max_num_seqs or num_seqs,
        limits.max_num_batched_tokens or batch_tokens,
        0 if model is None or model not in CONFIGS else kv_token_bytes(model, number_bytes),
    )
    is_measured = name not in (*GPUS, CPU_CARD)
    profile = None if is_measured else out / "profile.json"
    return Card(machine, profile, started_as, limits, num_rounds)


def simulated_means(
    workload: Workload, machines: Iterable[Machine], policies: Iterable[str], dram_gib: float
) -> dict[str, dict[str, float]]:
    """Mean job duration that the simulator expects on each machine under each policy.

    Raises InputError for a tier where the size of KV is not known.
    """
    from ..simulator.policies import NOT_SIMULATED, parse_policy
    from ..simulator.run import RunOptions, Simulation  # vLLM, which takes seconds to import

    means_s: dict[str, dict[str, float]] = {}
    simulated = [name for name in policies if name not in NOT_SIMULATED]
    for machine in machines:
        means_s[machine.name] = {}
        for name in simulated:
            options = RunOptions(dram_gib=dram_gib)
            jobs = Simulation(workload, machine, parse_policy(name), options).run().jobs
            means_s[machine.name][name] = fmean(job.ended_s - job.arrived_s for job in jobs)
    return means_s


def table_beside_simulator(
    results: Sequence[PolicyResult], expected_s: Mapping[str, float], baseline: str, machine: str
) -> str:
    """A line a policy: mean duration as measured and as simulated, and both over the baseline's."""
    rows = []
    for result in results:
        measured, expected = result.values["mean_s"], expected_s.get(result.policy)
        base_s = expected_s.get(baseline)
        if measured is None or expected is None or base_s is None:
            continue
        ratio = result.ratios["mean_s"]
        error = f"{expected / measured.mean - 1:+.0%}"
        means = (f"{measured.mean:.2f}", f"{expected:.2f}", error)
        rows.append([result.policy, *means, with_range(ratio), f"{expected / base_s:.2f}"])
    titles = ["policy", "measured s", "simulated s", "off by", f"measured / {baseline}"]
    return f"Simulated on {machine}:\n" + text_table(
        [*titles, f"simulated / {baseline}"], rows, rule=True
    )


def with_range(spread: Spread | None) -> str:
    """A mean, with least and most where they differ; `-` for None."""
    if spread is None:
        return "-"
    bounds = "" if spread.least == spread.most else f" ({spread.least:.2f}-{spread.most:.2f})"
    return f"{spread.mean:.2f}{bounds}"
