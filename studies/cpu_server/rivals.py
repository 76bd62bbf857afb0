"""Plays the same jobs under agentkv's policies and under the code of two rivals, on this machine.

`python -m studies.cpu_server.rivals --out DIR` measures a stock server, turns its times into the
constants that the rivals ship for a GPU, and runs `agentkv bench`. Flags that it does not know go
to `agentkv bench`. Needs agentinfer 0.2.0 next to vLLM, and vllm-router 0.1.17 on the PATH.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from agentkv.evals.commands.bench import CPU
from agentkv.evals.simulator import calibrate
from agentkv.evals.simulator.machine import ServerProfile
from agentkv.server.process import ServerProcess

from .. import rivals

OURS = ("fcfs", "agentkv")
BRIDGE = "agentinfer.agentcache.core.scheduler.AgentCacheSyncSchedulerBridge"
FORCED_RESUME_S = 1800
"""After this time a held turn runs whether it fits or not. Both ship 30 to 300 s: runs of
AgentInfer's authors gain most at 1,800 s."""


def main(argv: Sequence[str]) -> int:
    """The exit status of `agentkv bench`."""
    parser = argparse.ArgumentParser(prog="studies.cpu_server.rivals", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="profile and runs go there")
    options, more = parser.parse_known_args(argv)
    profile = measured_profile(options.out / "machine.json")
    flags = [
        *("--rival", f"agentinfer={shlex.join(agentinfer_flags(profile))}"),
        *("--rival-proxy", f"vllm-router={shlex.join(router_command(profile))}"),
    ]
    ours = [flag for name in OURS for flag in ("--policy", name)]
    return rivals.main([*ours, *flags, "--out", str(options.out), *more])


def measured_profile(path: Path) -> ServerProfile:
    """The profile on file, or measured now on a stock server with the flags of `bench`."""
    if not path.exists():
        flags = [*CPU.server_flags, "--num-gpu-blocks-override", str(CPU.num_blocks)]
        with ServerProcess(policy="fcfs", args=flags) as server:
            where = ["--base-url", server.base_url, "--out", str(path)]
            calibrate.main([*where, "--rounds", "2", "--max-num-seqs", "8"])
    return ServerProfile.model_validate_json(path.read_text())


def agentinfer_flags(profile: ServerProfile) -> list[str]:
    """Flags of `vllm serve` for AgentInfer."""
    flags = ["--no-async-scheduling", "--scheduler-cls", BRIDGE]
    prefill_s, linear_s, quadratic_s = prefill_model(profile)
    step = profile.step
    settings = {
        "ttl_prefill_model_intercept_seconds": prefill_s,
        "ttl_prefill_model_linear_seconds_per_1k_tokens": linear_s,
        "ttl_prefill_model_quadratic_seconds_per_1k_tokens_squared": quadratic_s,
        "decode_step_fixed_seconds": step.fixed_s,
        "decode_step_seconds_per_request": step.decode_s,
        "decode_step_seconds_per_context_token": step.context_token_s,
        "force_resume_timeout_min_seconds": FORCED_RESUME_S,
        "force_resume_timeout_max_seconds": FORCED_RESUME_S,
    }
    config = {"agentcache": {"progress_ttl": settings}}
    return [*flags, "--additional-config", json.dumps(config)]


def router_command(profile: ServerProfile) -> list[str]:
    """The command of vllm-router."""
    # a stock server's `/metrics` does not tell the router what its pool holds
    capacity_tokens = (CPU.num_blocks - 1) * int(CPU.server_flags[1])
    prefill_s, linear_s, quadratic_s = prefill_model(profile)
    config = {
        "token_capacity_per_target": capacity_tokens,
        "prefill_cost_model": {
            "intercept_seconds": prefill_s,
            "linear_seconds_per_1k_tokens": linear_s,
            "quadratic_seconds_per_1k_tokens_squared": quadratic_s,
        },
        "decode_throughput_model": {
            "fixed_step_seconds": profile.step.fixed_s,
            "batch_step_seconds_per_request": profile.step.decode_s,
            "context_step_seconds_per_token": profile.step.context_token_s,
        },
        "force_resume_timeout_seconds": FORCED_RESUME_S,
        "queue_timeout_seconds": 2 * FORCED_RESUME_S,
    }
    return [
        *("vllm-router", "--port", "{port}", "--worker-urls", "{server}"),
        *("--enable-program-scheduling", "--program-scheduling-config-json", json.dumps(config)),
    ]


def prefill_model(profile: ServerProfile) -> tuple[float, float, float]:
    """Seconds of a cold prefill of x thousand tokens, as a + b x + c x²."""
    step = profile.step
    return (
        profile.request_s + step.fixed_s,
        1e3 * step.prefill_token_s,
        1e6 * step.prefill_pair_s / 2,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
