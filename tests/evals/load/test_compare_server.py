"""One small comparison on real servers. It checks what must hold, and never a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentkv.cli import main as agentkv_command
from agentkv.evals.load.run_files import read_runs

pytestmark = pytest.mark.server

OPTIONS = (
    *("--policy", "fcfs", "--policy", "continuum", "--repeats", "1"),
    *("--jobs", "6", "--concurrency", "3", "--turns", "4", "--token-scale", "0.4"),
    *("--num-gpu-blocks-override", "34"),
)
"""Three jobs of 18 blocks at once in 33 blocks: what one job leaves in its tool, another takes."""
SERVER_FLAGS = ("--", "--max-model-len", "1024")


@pytest.fixture(scope="module")
def comparison(
    tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """The document of one run of `agentkv compare`, and its folder."""
    out = tmp_path_factory.mktemp("compare")
    options = ("--model", str(tiny_model_dir), "--out", str(out))
    assert agentkv_command(["compare", *OPTIONS, *options, *SERVER_FLAGS]) == 0
    return json.loads((out / "compare.json").read_text()), out


def test_all_jobs_complete_under_both_policies(comparison: tuple[dict[str, Any], Path]) -> None:
    """Six of six, none failed, none cut, each prompt as long as planned."""
    document, _ = comparison
    assert document["ended_early"] is None
    for policy in ("fcfs", "continuum"):
        found = document["policies"][policy]
        counts = [found[name] for name in ("jobs", "completed", "failed", "cut")]
        assert counts == [6, 6, 0, 0], policy
    prompts = [run["per_turn_avg_prompt_tokens"] for run in document["runs"]]
    assert prompts[0] == prompts[1]


def test_greedy_outputs_are_the_same(comparison: tuple[dict[str, Any], Path]) -> None:
    """Scheduling changes timing, never text: all 24 turns say the same."""
    found = comparison[0]["policies"]["continuum"]
    assert (found["turns_compared"], found["turns_differing"]) == (24, 0)


def test_pins_hit_at_least_what_fcfs_hits(comparison: tuple[dict[str, Any], Path]) -> None:
    """The share of continuing prompts found in the cache."""
    policies = comparison[0]["policies"]
    hit_rates = {name: found["values"]["hit_rate"]["mean"] for name, found in policies.items()}
    assert hit_rates["continuum"] >= hit_rates["fcfs"]


def test_the_document_has_its_shape(comparison: tuple[dict[str, Any], Path]) -> None:
    """Means and ratios by policy, the reference's keys by run, and runs that read back."""
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
            whole = parts.to_first_token_s + parts.decode_s + parts.tools_s + parts.other_s
            assert whole == pytest.approx(job.duration_s, abs=1e-6)
