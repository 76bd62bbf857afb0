"""`python -m studies.gpu.compare`: `agentkv bench` on a GPU next to what the simulator expects.

Serves a model with random weights, so nothing is downloaded. Measures an idle server first, plays
five policies, each without and with a tier of DRAM, then simulates the same jobs twice: by the
card's data sheet, and by the times measured. `--gpu cpu` does that without a tier, with a tiny
model on the CPU build, in minutes. Flags that it does not know go to `agentkv bench`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx

from agentkv.command_line import BAD_USAGE
from agentkv.errors import AgentKVError, InputError
from agentkv.evals.commands import bench
from agentkv.evals.player.servers import READY_TIMEOUT_S, BenchPlan
from agentkv.evals.rows import write_whole
from agentkv.evals.simulator import cost
from agentkv.evals.simulator.calibrate import measure
from agentkv.evals.simulator.machine import Limits, Machine, make_machine
from agentkv.evals.tables import text_table
from agentkv.integrations.vllm.serve import value_of
from agentkv.policies.names import OFFLOAD
from agentkv.server.process import ServerProcess

from .random_model import CONFIGS, kv_token_bytes, write_random_model

POLICIES = ("fcfs", "continuum:paper", "continuum:released", "context_serve", "agentkv")
"""Each without and, on a GPU, with a tier of DRAM, for which vLLM's CPU build has no worker."""
CPU_CARD = "cpu"
"""The name of no card: all that a GPU run does, on the CPU build with a tiny model."""
_CPU_BYTES, _GPU_BYTES = 4, 2
"""Of one number of the KV cache: `agentkv serve` has float32 on the CPU build."""
Means = dict[str, dict[str, float]]
"""Simulated seconds of a mean job, by machine and policy."""


@dataclass(frozen=True, slots=True)
class Regime:
    """Defaults of a card: the model, flags of `agentkv bench`, and flags of the servers."""

    model: str
    flags: tuple[str, ...]
    server_flags: tuple[str, ...]
    calibration_rounds: int = 4


NUM_BLOCKS = 3000
ON_A_GPU = Regime(
    "llama-3.1-8b",
    (
        *("--workload", "swebench", "--jobs", "40", "--concurrency", "20", "--turns", "20"),
        *("--token-scale", "1", "--max-context-tokens", "32000"),
        *("--num-gpu-blocks-override", str(NUM_BLOCKS), "--dram-gib", "64"),
    ),
    (
        *("--block-size", str(cost.BLOCK_TOKENS), "--max-model-len", "32768"),
        *("--max-num-seqs", str(cost.BIG_NUM_SEQS), "--gpu-memory-utilization", "0.85"),
        *("--max-num-batched-tokens", str(cost.BIG_BATCH_TOKENS)),
    ),
)
"""The pool and jobs of the studies' regime that is short of memory; no file is downloaded."""
DRY_RUN = Regime(
    "llama-tiny",
    (
        *("--workload", "swebench", "--jobs", "4", "--concurrency", "3", "--turns", "3"),
        *("--token-scale", "0.2", "--max-context-tokens", "900"),
        *("--num-gpu-blocks-override", "33"),
    ),
    (
        *("--block-size", "32", "--max-model-len", "1024", "--max-num-seqs", "8"),
        *("--max-num-batched-tokens", "1024"),
    ),
    calibration_rounds=1,
)
"""All that a GPU run does, within seconds a server; its times mean nothing."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """A comparison on one card; `flags` are those of `agentkv bench`."""

    gpu: str
    model: str
    out: Path
    flags: tuple[str, ...]
    calibration_rounds: int

    @property
    def plan(self) -> BenchPlan:
        return bench.read_plan(self.flags)[1]

    @property
    def profile(self) -> Path | None:
        """Where the times of the measured server go; None if --gpu names a profile."""
        is_named = self.gpu in (*cost.GPUS, CPU_CARD)
        return self.out / "profile.json" if is_named else None

    def calibrate(self) -> None:
        """Measure an idle stock server, unless that was done; says so if it cannot."""
        if self.profile is None or self.profile.exists():
            return
        plan = self.plan
        server = ServerProcess(
            plan.model,
            policy="fcfs",
            args=plan.server_flags,
            log_path=self.out / "calibrate.log",
            ready_timeout_s=READY_TIMEOUT_S,
        )
        report = partial(print, file=sys.stderr, flush=True)
        try:
            with server:
                rounds = self.calibration_rounds
                profile = measure(
                    server.base_url, self.started_as(), num_rounds=rounds, report=report
                )
            write_whole(self.profile, profile.model_dump_json(indent=1) + "\n")
        except (AgentKVError, httpx.HTTPError, OSError) as error:
            report(f"not calibrated: {error}")

    def started_as(self) -> dict[str, Any]:
        """What a server of this comparison does not tell of itself."""
        limits = _limits(self.plan.server_flags)
        number_bytes = _CPU_BYTES if self.gpu == CPU_CARD else _GPU_BYTES
        token_bytes = kv_token_bytes(self.model, number_bytes) if self.model in CONFIGS else 0
        return {
            "name": f"{self.gpu}, measured",
            "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": limits.max_num_batched_tokens,
            "kv_token_bytes": token_bytes,
        }

    def machines(self) -> list[Machine]:
        """The machines to simulate: the data sheet's or the given profile's, and the measured."""
        limits, found = _limits(self.plan.server_flags), []
        if self.gpu != CPU_CARD and (self.gpu not in cost.GPUS or self.model in cost.MODELS):
            named = self.model if self.model in cost.MODELS else None
            found.append(make_machine(self.gpu, named, limits))
        if self.profile is not None and self.profile.exists():
            found.append(make_machine(str(self.profile), None, limits))
        return found


def read_experiment(argv: Sequence[str]) -> tuple[argparse.Namespace, Experiment]:
    """The comparison that the flags describe; writes the model's folder. Raises InputError."""
    own = list(argv)
    cut = own.index("--") if "--" in own else len(own)
    parser = argparse.ArgumentParser(prog="python -m studies.gpu.compare", description=__doc__)
    add = parser.add_argument
    add("--gpu", default="h100", metavar="NAME|FILE", help="a card, a profile, or cpu")
    add("--model", help=f"{' and '.join(CONFIGS)} get random weights (default llama-3.1-8b)")
    add("--out", type=Path, required=True, help="runs, bench.json, profile.json, simulated.json")
    add("--force", action="store_true", help="overwrite what is there")
    options, more = parser.parse_known_args(own[:cut])
    regime = DRY_RUN if options.gpu == CPU_CARD else ON_A_GPU
    model, out = options.model or regime.model, options.out
    server_flags = [*regime.server_flags, *own[cut + 1 :]]
    path = model
    if model in CONFIGS:
        server_flags = ["--load-format", "dummy", "--served-model-name", model, *server_flags]
        path = str(out / "model")
    flags = [*regime.flags, "--model", path, "--out", str(out), *more]
    if "--policy" not in more:
        tiers = ("",) if options.gpu == CPU_CARD else ("", OFFLOAD)
        flags += [flag for tier in tiers for name in POLICIES for flag in ("--policy", name + tier)]
    flags += ["--force"] if options.force else []
    rounds = regime.calibration_rounds
    made = Experiment(options.gpu, model, out, (*flags, "--", *server_flags), rounds)
    made.machines()
    if model in CONFIGS:
        write_random_model(out / "model", model)
    return options, made


def _limits(flags: Sequence[str]) -> Limits:
    def number(flag: str) -> int | None:
        text = value_of(flags, flag)
        if text is not None and not text.isdecimal():
            raise InputError(f"{flag}: got {text!r}, a whole number is needed")
        return None if text is None else int(text)

    return Limits(
        num_blocks=number("--num-gpu-blocks-override"),
        block_tokens=number("--block-size"),
        max_num_seqs=number("--max-num-seqs"),
        max_num_batched_tokens=number("--max-num-batched-tokens"),
        max_model_tokens=number("--max-model-len"),
    )


def simulated_means(experiment: Experiment) -> Means:
    """Mean job duration that the simulator expects on each machine under each policy but rivals.

    Raises InputError for a tier where the size of KV is not known.
    """
    from agentkv.evals.simulator.plan import RunOptions
    from agentkv.evals.simulator.run import Simulation  # vLLM: seconds to import
    from agentkv.policies.names import NOT_SIMULATED, simulated_policy

    plan, options = experiment.plan, RunOptions(dram_gib=experiment.plan.dram_gib)
    names = [policy.name for policy in plan.policies]
    means_s: Means = {}
    for machine in experiment.machines():
        means_s[machine.name] = {}
        for name in names:
            if name not in NOT_SIMULATED:
                jobs = (
                    Simulation(plan.workload, machine, simulated_policy(name), options).run().jobs
                )
                mean_s = fmean(job.ended_s - job.arrived_s for job in jobs)
                means_s[machine.name][name] = mean_s
    return means_s


def table_beside_simulator(
    document: Mapping[str, Any], expected_s: Mapping[str, float], machine: str
) -> str:
    """A line a policy: mean duration as measured and as simulated, and both over the baseline's.

    `document` is that of `agentkv bench`.
    """
    baseline, rows = document["baseline"], []
    base_s = expected_s.get(baseline)
    for name, result in document["policies"].items():
        measured, expected = result["values"]["mean_s"], expected_s.get(name)
        if measured is None or expected is None or base_s is None:
            continue
        ratio = result["ratios"]["mean_s"]
        over = "-" if ratio is None else f"{ratio['mean']:.2f}"
        if ratio is not None and ratio["least"] != ratio["most"]:
            over += f" ({ratio['least']:.2f}-{ratio['most']:.2f})"
        error = f"{expected / measured['mean'] - 1:+.0%}"
        means = (f"{measured['mean']:.2f}", f"{expected:.2f}", error)
        rows.append([name, *means, over, f"{expected / base_s:.2f}"])
    titles = ["policy", "measured s", "simulated s", "off by", f"measured / {baseline}"]
    return f"Simulated on {machine}:\n" + text_table(
        [*titles, f"simulated / {baseline}"], rows, rule=True
    )


def main(argv: Sequence[str]) -> int:
    """The exit status of `agentkv bench`; 2 where nothing could be done."""
    try:
        options, experiment = read_experiment(argv)
        if options.force and experiment.profile is not None:
            experiment.profile.unlink(missing_ok=True)
        experiment.calibrate()
        status = bench.main(experiment.flags)
    except (AgentKVError, OSError) as error:
        print(f"studies.gpu.compare: {error}", file=sys.stderr)
        return BAD_USAGE
    document = json.loads((experiment.out / bench.RESULT_FILE).read_text(encoding="utf-8"))
    expected_s = simulated_means(experiment)
    for machine, means_s in expected_s.items():
        print(f"\n{table_beside_simulator(document, means_s, machine)}")
    found = json.dumps({"simulated_mean_s": expected_s})
    write_whole(experiment.out / "simulated.json", found + "\n")
    print(found, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
