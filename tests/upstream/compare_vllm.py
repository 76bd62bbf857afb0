"""Runs vLLM's own scheduler tests under its classes and under ours with each policy, and compares
test by test.

`make test-upstream`. Exit status 0: every test passed or failed alike, and ours were really
used. 1: some did not; they are named. The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from comparison import Recorder, compare, report
from sources import VLLM_VERSION, fetch_vllm

from agentkv.policies.names import SHIPPED

FILES = ("test_scheduler.py", "test_prefix_caching.py", "test_async_scheduler.py")


def replace(policy: str, recorder: Recorder) -> None:
    """Put our schedulers, under this policy, in the place of vLLM's."""
    # Imported for its effect: its classes must derive from the stock ones, as on a server.
    importlib.import_module("vllm.v1.core.sched.diffusion_scheduler")
    from vllm.v1.core.sched import async_scheduler, scheduler

    from agentkv.integrations.vllm.engine.scheduler import (
        AsyncRetainingScheduler,
        RetainingScheduler,
    )
    from agentkv.policies.names import CONFIG_KEY

    def configure(arguments: dict[str, Any]) -> None:
        arguments["vllm_config"].additional_config[CONFIG_KEY] = {"policy": policy}

    modules: tuple[Any, Any] = (scheduler, async_scheduler)
    modules[0].Scheduler = recorder.counted(RetainingScheduler, configure)
    modules[1].AsyncScheduler = recorder.counted(AsyncRetainingScheduler, configure)


@pytest.fixture
def caplog_vllm(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Stands in for the fixture of vLLM's conftest: its logger reaches the root logger."""
    logger = logging.getLogger("vllm")
    propagates, logger.propagate = logger.propagate, True
    with caplog.at_level(logging.INFO, logger="vllm"):
        yield caplog
    logger.propagate = propagates


def main() -> int:
    from stand_in_models import write_stand_ins

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path(".upstream"))
    cache = parser.parse_args().cache.resolve()
    source = fetch_vllm(cache)
    write_stand_ins(cache / "models")
    offline = {"HF_HOME": str(cache / "models"), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    found = compare(
        "compare_vllm",
        tuple(SHIPPED),
        [f"tests/v1/core/{name}" for name in FILES],
        source=source,
        cache=cache,
        options=["--noconftest"],
        environment=offline,
    )
    return report({"vllm": VLLM_VERSION, **found})


if __name__ == "__main__":
    sys.exit(main())
