"""Ray Serve LLM with two replicas of vLLM under agentkv, by its recipe."""

import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import httpx
import pytest
import yaml

from agentkv.server.process import HTTPProcess, free_port
from tests.integrations.routers.jobs import NUM_TURNS, play_all
from tests.integrations.routers.routers import MODEL, RECIPES
from tests.server.chat import LIMIT_S, wait_for

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(1800)]

NUM_JOBS = 20
PATIENT = {
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "200",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "200",
    "RAY_SERVE_HAPROXY_STARTUP_TIMEOUT_S": "200",
}
"""Ray gives its processes seconds to start, which two busy cores exceed."""


def ray_serve(model: Path, folder: Path) -> HTTPProcess:
    """The recipe with a small model on CPUs."""
    program = shutil.which("serve")
    if program is None:
        pytest.skip("Ray Serve is not installed: make test-fleet installs it")
    config = yaml.safe_load((RECIPES / "ray-serve.yaml").read_text(encoding="utf-8"))
    config["http_options"]["port"] = port = free_port()
    (llm,) = config["applications"][0]["args"]["llm_configs"]
    llm["model_loading_config"] = {"model_id": MODEL, "model_source": str(model)}
    llm["accelerator_config"] = {"kind": "cpu"}
    llm["engine_kwargs"] |= {
        "dtype": "float32",
        "max_model_len": 4096,
        "enforce_eager": True,
        "block_size": 32,
    }
    (folder / "serve.yaml").write_text(yaml.safe_dump(config))
    direct = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING": "1"}
    ours = {"VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": os.getcwd()}
    ray = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    ray["RAY_OVERRIDE_RESOURCES"] = '{"CPU": 4}'  # of which each replica reserves two
    return HTTPProcess(
        [program, "run", str(folder / "serve.yaml")],
        name="Ray Serve",
        port=port,
        log_path=folder / "serve.log",
        environment={**direct, **ours, **ray, **PATIENT},
        ready_timeout_s=1200.0,
    )


def are_both_ready() -> bool:
    """Ray serves as soon as one replica is up, and moves jobs when the other joins."""
    status = subprocess.run(["serve", "status"], capture_output=True, text=True, check=False)
    return "RUNNING: 2" in status.stdout


def events_of(router: HTTPProcess, job_id: str) -> Counter[str]:
    """The events of a job on the replica that has most of its turns.

    Ray sends each GET to any replica, so it is asked several times.
    """
    found = []
    for _ in range(8):
        reply = httpx.get(
            f"{router.base_url}/agentkv/timestamps", params={"job": job_id}, timeout=LIMIT_S
        )
        events = reply.raise_for_status().json()["jobs"].get(job_id, [])
        found.append(Counter(event["event"] for event in events))
    return max(found, key=lambda events: events["arrival"])


def test_jobs_and_their_feedback_stay_on_one_replica(tiny_model_dir: Path, tmp_path: Path) -> None:
    """All turns, tool events and the release of a job reach one replica, by vLLM's own routes."""
    with ray_serve(tiny_model_dir, tmp_path) as router:
        wait_for(are_both_ready)
        jobs = play_all(router, "ray", NUM_JOBS)
        events = [events_of(router, job.job_id) for job in jobs]
    feedback = [
        min(sum(count for name, count in each.items() if name.startswith("tool_")), 6)
        for each in events
    ]
    row = {
        "router": "ray serve",
        "turns on the job's server": sum(each["arrival"] for each in events),
        "cached of cacheable": sum(job.cached for job in jobs) / sum(job.cacheable for job in jobs),
        "tool events there": sum(feedback),
        "releases there": sum(each["closed"] for each in events),
    }
    print("\n" + json.dumps(row))
    assert row["turns on the job's server"] == NUM_JOBS * NUM_TURNS
    assert row["cached of cacheable"] > 0.98
    assert row["tool events there"] == NUM_JOBS * (NUM_TURNS - 1) * 2
    assert row["releases there"] == NUM_JOBS
