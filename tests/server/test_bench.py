"""`agentkv bench` on real servers: two policies, and a rival with its flags and its proxy.

It checks what must hold, and never a time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from studies import rivals

pytestmark = [pytest.mark.server, pytest.mark.long]

OPTIONS = (
    *("--policy", "fcfs", "--policy", "continuum", "--repeats", "1"),
    *("--rival", "no-cache=--no-enable-prefix-caching"),
    *("--jobs", "24", "--concurrency", "3", "--token-scale", "1"),
    *("--num-gpu-blocks-override", "34"),
)
SERVER_FLAGS = ("--", "--max-model-len", "1024")
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


def jobs_that_use_tools() -> Iterator[dict[str, Any]]:
    """The lines of a trace: 4 jobs of 4 turns with tools of 1 s, 20 jobs of one turn.

    Three jobs at once hold at most 30 of the 33 usable blocks of 32 tokens: pins need never give
    way. While a job is in its tool, others begin and end, and each takes 10 blocks: without a pin
    it is the KV idle for longest that goes, that of the job in its tool, before that of jobs over.
    """
    for job in range(4):
        for turn in range(4):
            prompt_tokens = 80 + 70 * turn
            tool = {"command": "make test", "tool_s": 1.0}
            yield _trace_line(f"tools-{job}", turn, prompt_tokens) | tool
    for job in range(20):
        yield _trace_line(f"brief-{job}", 0, 290)


def _trace_line(job_id: str, turn: int, prompt_tokens: int) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt_tokens, "output_tokens": 8}
    return {"job_id": job_id, "turn": turn, **counts, "command": None, "tool_s": None}


def test_policies_differ_in_hits_and_in_nothing_else(
    tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All 24 jobs complete with equal prompts and greedy outputs; pins find more in the cache, and
    the rival without a prefix cache nothing, though every turn passed its proxy."""
    trace, script = tmp_path / "jobs.jsonl", tmp_path / "forward.py"
    trace.write_text("".join(f"{json.dumps(line)}\n" for line in jobs_that_use_tools()))
    script.write_text(FORWARDER)
    proxy = ("--rival-proxy", f"no-cache={sys.executable} {script} {{server}} {{port}}")
    flags = ("--model", str(tiny_model_dir), "--trace", str(trace), "--out", str(tmp_path / "out"))
    assert rivals.main([*OPTIONS, *proxy, *flags, "--json", *SERVER_FLAGS]) == 0
    document = json.loads(capsys.readouterr().out)
    fcfs, continuum, rival = (
        document["policies"][name] for name in ("fcfs", "continuum", "no-cache")
    )
    assert document["ended_early"] is None
    for found in (fcfs, continuum, rival):
        counts = [found[name] for name in ("jobs", "completed", "failed", "cut")]
        assert counts == [24, 24, 0, 0]
        assert found is fcfs or (found["turns_compared"], found["turns_differing"]) == (36, 0)
    assert len({tuple(run["per_turn_avg_prompt_tokens"]) for run in document["runs"]}) == 1
    rates = [found["values"]["hit_rate"]["mean"] for found in (continuum, fcfs, rival)]
    assert rates[0] > rates[1] > rates[2] == 0.0
    folder = tmp_path / "out" / "no-cache-0"
    assert (folder / "proxy.log").read_text().count("a turn") == 36
    config = json.loads((folder / "run.json").read_text())["metadata"]["config"]
    assert config["rival"]["server_flags"] == ["--no-enable-prefix-caching"]
