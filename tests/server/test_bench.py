"""`agentkv bench` on real servers under two policies.

It checks what must hold, and never a time.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentkv.cli import main

pytestmark = [pytest.mark.server, pytest.mark.long]

OPTIONS = (
    *("--policy", "fcfs", "--policy", "continuum", "--repeats", "1"),
    *("--jobs", "24", "--concurrency", "3", "--token-scale", "1"),
    *("--num-gpu-blocks-override", "34"),
)
SERVER_FLAGS = ("--", "--max-model-len", "1024")


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
    """All 24 jobs complete with equal prompts and greedy outputs; pins find more in the cache."""
    trace = tmp_path / "jobs.jsonl"
    trace.write_text("".join(f"{json.dumps(line)}\n" for line in jobs_that_use_tools()))
    flags = ("--model", str(tiny_model_dir), "--trace", str(trace), "--out", str(tmp_path / "out"))
    assert main(["bench", *OPTIONS, *flags, "--json", *SERVER_FLAGS]) == 0
    document = json.loads(capsys.readouterr().out)
    fcfs, continuum = (document["policies"][name] for name in ("fcfs", "continuum"))
    assert document["ended_early"] is None
    for found in (fcfs, continuum):
        counts = [found[name] for name in ("jobs", "completed", "failed", "cut")]
        assert counts == [24, 24, 0, 0]
    assert (continuum["turns_compared"], continuum["turns_differing"]) == (36, 0)
    assert len({tuple(run["per_turn_avg_prompt_tokens"]) for run in document["runs"]}) == 1
    rates = [found["values"]["hit_rate"]["mean"] for found in (continuum, fcfs)]
    assert rates[0] > rates[1]
