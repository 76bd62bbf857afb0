"""One small comparison on real servers. It checks what must hold, and never a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentkv.cli import main as agentkv
from agentkv.evals.rows import read_runs

pytestmark = pytest.mark.server

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


@pytest.fixture(scope="module")
def comparison(
    tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """The document of one run of `agentkv compare`, and its folder."""
    trace = tmp_path_factory.mktemp("trace") / "jobs.jsonl"
    trace.write_text("".join(f"{json.dumps(line)}\n" for line in jobs_that_use_tools()))
    out = tmp_path_factory.mktemp("compare")
    options = ("--model", str(tiny_model_dir), "--trace", str(trace), "--out", str(out))
    assert agentkv(["compare", *OPTIONS, *options, *SERVER_FLAGS]) == 0
    return json.loads((out / "compare.json").read_text()), out


def test_policies_differ_in_hits_and_in_nothing_else(
    comparison: tuple[dict[str, Any], Path],
) -> None:
    """All 24 jobs complete with equal prompts and greedy outputs; pins find more in the cache."""
    document, _ = comparison
    fcfs, continuum = (document["policies"][name] for name in ("fcfs", "continuum"))
    assert document["ended_early"] is None
    for found in (fcfs, continuum):
        counts = [found[name] for name in ("jobs", "completed", "failed", "cut")]
        assert counts == [24, 24, 0, 0]
    prompts = [run["per_turn_avg_prompt_tokens"] for run in document["runs"]]
    assert prompts[0] == prompts[1]
    assert (continuum["turns_compared"], continuum["turns_differing"]) == (36, 0)
    assert continuum["values"]["hit_rate"]["mean"] > fcfs["values"]["hit_rate"]["mean"]


def test_the_document_has_its_shape(comparison: tuple[dict[str, Any], Path]) -> None:
    """The document has ratios by policy and the reference's keys by run; the runs read back."""
    document, out = comparison
    assert document["baseline"] == "fcfs"
    assert document["policies"]["fcfs"]["ratios"]["mean_s"]["mean"] == 1.0
    assert document["policies"]["continuum"]["ratios"]["mean_s"]["mean"] > 0.0
    keys = {"policy", "jps", "avg_duration_s", "p90_duration_s", "p95_duration_s"}
    keys |= {"per_turn_avg_latency_ms", "per_turn_avg_prompt_tokens", "job_durations"}
    assert all(run.keys() >= keys for run in document["runs"])
    runs = read_runs([out])
    assert sorted(run.policy for run in runs) == ["continuum", "fcfs"]
    assert all(run.metadata["server_version"] for run in runs)
    for run in runs:
        for job in run.jobs:
            parts = job.parts
            assert sum(parts.values()) == pytest.approx(job.duration_s, abs=1e-6)
