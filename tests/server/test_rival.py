"""A rival of `agentkv compare` on a real server: its flags, and its proxy, are what is measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentkv.evals.commands.compare import ComparePlan, run_all
from agentkv.evals.rivals import read_rivals
from agentkv.evals.workload.workloads import make_workload
from tests.conftest import TINY_ARGS

pytestmark = [pytest.mark.server, pytest.mark.long]

FORWARDER = """
import asyncio, sys

target, port = sys.argv[1].removeprefix("http://").split(":"), int(sys.argv[2])

async def copy(reader, writer):
    while data := await reader.read(65536):
        if b"/v1/completions" in data:
            print("a turn", flush=True)
        writer.write(data)
        await writer.drain()
    writer.close()

async def serve(reader, writer):
    there = await asyncio.open_connection(*target)
    await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))

async def main():
    async with await asyncio.start_server(serve, "127.0.0.1", port) as server:
        await server.serve_forever()

asyncio.run(main())
"""


def test_a_rivals_jobs_run_with_its_flags_through_its_proxy(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    """Stock without a prefix cache finds nothing in it, and every turn passed the proxy."""
    script = tmp_path / "forward.py"
    script.write_text(FORWARDER)
    plan = ComparePlan(
        policies=tuple(
            read_rivals(
                ["no-cache=--no-enable-prefix-caching"],
                [f"no-cache={sys.executable} {script} {{server}} {{port}}"],
            )
        ),
        repeats=1,
        workload=make_workload("reference", num_jobs=2, seed=0, jps=10.0, max_turns=2),
        described={"name": "reference"},
        model=str(tiny_model_dir),
        server_flags=TINY_ARGS,
        out=tmp_path / "out",
        ready_timeout_s=600.0,
        limit_s=None,
    )
    [run] = run_all(plan, resume=False)
    assert run.policy == "no-cache"
    assert [job.status for job in run.jobs] == ["done", "done"]
    turns = [turn for job in run.jobs for turn in job.turns]
    assert (len(turns), sum(turn.cached_tokens for turn in turns)) == (4, 0)
    log = (tmp_path / "out" / "no-cache-0" / "proxy.log").read_text()
    assert log.count("a turn") == 4
    assert run.metadata["config"]["rival"]["server_flags"] == ("--no-enable-prefix-caching",)
