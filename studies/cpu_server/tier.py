"""Plays the same jobs under five policies without a KV tier, with a fast one, and with a slow one.

`python -m studies.cpu_server.tier --out DIR` measures a stock server and sets the slow tier's link
so that loading a token takes as long as computing it. Then it runs `agentkv bench` once for each
tier and repeat, interleaved, and sets what it measured next to the simulator. All servers compute
on the same cores. Flags that it does not know describe the workload; a run that broke off goes on
with the same --out. The last line on standard output is one JSON document.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentkv.command_line import positive, whole_number
from agentkv.evals.commands import bench
from agentkv.evals.commands.bench import CPU
from agentkv.evals.outcomes import RunOutcome, Spread, summarize
from agentkv.evals.player.servers import CORES, all_cores
from agentkv.evals.rows import read_runs
from agentkv.evals.simulator import calibrate, simulate
from agentkv.evals.simulator.machine import ServerProfile
from agentkv.evals.tables import text_table
from agentkv.server.process import ServerProcess
from tests.cpu_tier import tier_flags

POLICIES = ("fcfs", "continuum:paper", "continuum:released", "context_serve", "agentkv")
TIERS = ("none", "fast", "slow")
KV_TOKEN_BYTES = 30 * 2 * 3 * 64 * 4
"""Of the demo model: layers, keys and values, heads, their size, float32."""
MEMORY_GB_S = 2.0
"""What one busy core of this machine copies, block by block."""
TIER_GIB = "2"
JOBS = ("--jobs", "12", "--concurrency", "6", "--turns", "8", "--token-scale", "0.5")
NUM_BLOCKS = "144"
"""Memory for three of the six jobs at once, as in `agentkv bench`: a run takes two minutes on two
cores. With four short jobs the simulator sees no difference between policies."""
SERVER_FLAGS = ("--max-model-len", "2048", "--max-num-batched-tokens", "1024")


def main(argv: Sequence[str]) -> int:
    """0: all jobs of all runs done; 1: some were not."""
    parser = argparse.ArgumentParser(prog="studies.cpu_server.tier", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="profile and runs go there")
    parser.add_argument(
        "--repeats", type=whole_number(1), default=3, metavar="N", help="runs of each kind"
    )
    parser.add_argument("--policy", action="append", metavar="NAME", help="these alone; repeatable")
    parser.add_argument("--tier", action="append", choices=TIERS, help="these alone; repeatable")
    link = "of the slow tier; otherwise one that loads a token as fast as it is computed"
    parser.add_argument("--link-gb-s", type=positive, metavar="X", help=link)
    options, more = parser.parse_known_args(argv)
    policies = tuple(options.policy or POLICIES)
    os.environ.setdefault(CORES, all_cores())
    profile = measured_profile(options.out / "profile.json")
    link_gb_s = options.link_gb_s or KV_TOKEN_BYTES / profile.step.prefill_token_s / 1e9
    server_flags = {
        "none": (),
        "fast": tier_flags(float(TIER_GIB)),
        "slow": tier_flags(float(TIER_GIB), link_gb_per_s=round(link_gb_s, 4)),
    }
    tiers = [tier for tier in TIERS if tier in (options.tier or TIERS)]
    status = 0
    for repeat in range(1, options.repeats + 1):
        for tier in tiers:
            where = ("--out", str(options.out / tier), "--resume", "--repeats", str(repeat))
            scarce = ("--num-gpu-blocks-override", NUM_BLOCKS, *more)
            servers = ("--json", "--", *SERVER_FLAGS, *server_flags[tier])
            status |= bench.main([*_flags(policies), *JOBS, *scarce, *where, *servers])
    found = {tier: read_runs([options.out / tier]) for tier in tiers}
    profile_path = options.out / "profile.json"
    rows = [
        row
        for tier in tiers
        for row in table_rows(
            tier, found, simulate_tier(profile_path, policies, tier, link_gb_s, more)
        )
    ]
    print(text_table(HEADER, rows, left=2, rule=True))
    print(json.dumps({"link_gb_s": link_gb_s, "differing_turns": differing(found), "rows": rows}))
    return status


def _flags(policies: Sequence[str]) -> list[str]:
    return [flag for name in policies for flag in ("--policy", name)]


def measured_profile(path: Path) -> ServerProfile:
    """The profile on file, or measured now on a stock server with the flags of `bench`."""
    if not path.exists():
        flags = [*CPU.server_flags, "--num-gpu-blocks-override", str(CPU.num_blocks)]
        with ServerProcess(policy="fcfs", args=flags) as server:
            where = ["--base-url", server.base_url, "--out", str(path)]
            size = ["--kv-token-bytes", str(KV_TOKEN_BYTES)]
            calibrate.main([*where, *size, "--rounds", "2", "--max-num-seqs", "8"])
    return ServerProfile.model_validate_json(path.read_text())


HEADER = (
    *("tier", "policy", "n", "mean s", "mean / fcfs", "mean / fcfs, same tier"),
    *("hit rate", "recomputed"),
    *("simulated s", "simulated / measured", "simulated mean / fcfs, same tier"),
)


def table_rows(
    tier: str, found: dict[str, list[RunOutcome]], simulated: dict[str, Any]
) -> list[list[str]]:
    """A row a policy; ratios are of the same repeat, with their range."""
    means = {name: _by_repeat(runs, "mean_s") for name, runs in found.items()}
    rows = []
    for policy, ours in means[tier].items():
        hits = _by_repeat(found[tier], "hit_rate")[policy]
        again = _by_repeat(found[tier], "recomputed_tokens")[policy]
        suffix = "" if tier == "none" else "+offload"
        expected_s, stock_s = (simulated[name + suffix]["mean_s"] for name in (policy, "fcfs"))
        rows.append(
            [
                *(tier, policy, str(len(ours)), _mean(list(ours.values()), ".1f")),
                _ratio(ours, means.get("none", {}).get("fcfs", {})),
                _ratio(ours, means[tier].get("fcfs", {})),
                _mean(list(hits.values()), ".2f"),
                _mean(list(again.values()), ",.0f"),
                f"{expected_s:.1f}",
                _mean([expected_s / mean_s for mean_s in ours.values()], ".2f"),
                f"{expected_s / stock_s:.2f}",
            ]
        )
    return rows


def _by_repeat(runs: Sequence[RunOutcome], key: str) -> dict[str, dict[int, float]]:
    """A number of each run's summary, by policy and repeat; runs without one do not count."""
    found: dict[str, dict[int, float]] = {run.policy: {} for run in runs}
    for run in runs:
        number = summarize(run)[key]
        if number is not None:
            found[run.policy][int(run.metadata["repeat"])] = float(number)
    return found


def _mean(values: Sequence[float], form: str) -> str:
    spread = Spread.of(values)
    if spread is None:
        return "-"
    return f"{spread.mean:{form}} ({spread.least:{form}}-{spread.most:{form}})"


def _ratio(ours: dict[int, float], theirs: dict[int, float]) -> str:
    return _mean([ours[repeat] / theirs[repeat] for repeat in ours if repeat in theirs], ".2f")


def differing(found: dict[str, list[RunOutcome]]) -> dict[str, int]:
    """Turns of each tier whose greedy output is not that of the first run, and `compared`."""
    outputs = {
        tier: [
            {(job.job_id, turn.turn): turn.output_digest for job in run.jobs for turn in job.turns}
            for run in runs
        ]
        for tier, runs in found.items()
    }
    reference = next(iter(outputs.values()))[0]
    counted = {
        tier: sum(digest != reference[key] for run in runs for key, digest in run.items())
        for tier, runs in outputs.items()
    }
    return {**counted, "compared": sum(len(run) for runs in outputs.values() for run in runs)}


def simulate_tier(
    profile: Path, policies: Sequence[str], tier: str, link_gb_s: float, more: Sequence[str]
) -> dict[str, Any]:
    """What the simulator says of stock and each policy with this tier."""
    blocks = ("--blocks", NUM_BLOCKS, *SERVER_FLAGS)
    gb_s = link_gb_s if tier == "slow" else MEMORY_GB_S
    link = ("--dram-gib", TIER_GIB, "--dram-gb-s", f"{gb_s:.4f}")
    flags = ["--gpu", str(profile), *blocks, *link, *JOBS, *more]
    suffix = "" if tier == "none" else "+offload"
    kinds = dict.fromkeys(f"{policy}{suffix}" for policy in ("fcfs", *policies))
    with contextlib.redirect_stdout(io.StringIO()) as text:
        simulate.main([*flags, *_flags(tuple(kinds)), "--json"])
    document: dict[str, Any] = json.loads(text.getvalue().splitlines()[-1])["policies"]
    return document


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
