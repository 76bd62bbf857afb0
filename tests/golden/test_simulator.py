"""The simulator's rows are the same for every policy, with and without a DRAM tier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden.harness import Golden, digest, document_of, masked

pytestmark = pytest.mark.slow

OURS = (
    "continuum:paper",
    "continuum:released",
    'context_serve{"predictor": "default"}',
    'context_serve{"predictor": "context_serve"}',
    "agentkv",
)
POLICIES = ("fcfs", *OURS)
MACHINE = ("--gpu", "rtx-5090", "--blocks", "420", "--dram-gib", "0.5")
JOBS = (
    *("--workload", "swebench", "--jobs", "28", "--turns", "8", "--token-scale", "0.25"),
    *("--jps", "1.5", "--tools", "longtail", "--seed", "3"),
)
"""Contexts of up to 3,000 tokens in a pool of 6,700: turns wait, and some are preempted."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each policy left behind: the summary, its turns and its event log."""
    found = {}
    for tier in ("", "+offload"):
        out = tmp_path_factory.mktemp(f"simulated{tier}")
        flags = [flag for policy in POLICIES for flag in ("--policy", policy + tier)]
        flags += ["--record", "--out", str(out)]
        document = document_of("simulate", *MACHINE, *JOBS, *flags)
        summaries = document.pop("policies")
        found[f"document{tier}"] = masked(document, "commit|versions")
        folders = {json.loads(p.read_text())["policy"]: p.parent for p in out.glob("*/run.json")}
        assert set(folders) == set(summaries)
        for policy, summary in summaries.items():
            found[policy.replace(" ", "")] = {
                "summary": masked(summary),
                "jobs": _jobs(folders[policy] / "turns.jsonl"),
                "events": _events(folders[policy] / "timestamps.json"),
            }
    return found


def _jobs(path: Path) -> dict[str, Any]:
    """Per job: seconds to its end, cached tokens, and a digest of all of its turns."""
    turns: dict[str, list[Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        fields = ("turn", "sent_s", "first_token_s", "ended_s", "prompt_tokens", "cached_tokens")
        turns.setdefault(row["job_id"], []).append(masked([row[name] for name in fields]))
    return {
        job_id: [rows[-1][3], sum(row[5] for row in rows), digest(rows)]
        for job_id, rows in sorted(turns.items())
    }


def _events(path: Path) -> dict[str, Any] | None:
    """How often each event was logged, and a digest of them; None under stock policies.

    Lengths of outputs, which came later, are those of the rows.
    """
    if not path.exists():
        return None
    jobs = masked(json.loads(path.read_text(encoding="utf-8"))["jobs"])
    counts: dict[str, int] = {}
    for events in jobs.values():
        for event in events:
            event.pop("output_length", None)
            counts[event["event"]] = counts.get(event["event"], 0) + 1
    return {"counts": dict(sorted(counts.items())), "digest": digest(jobs)}


@pytest.mark.parametrize("tier", ["", "+offload"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_s_rows_are_as_before(
    golden: Golden, rows: dict[str, dict[str, Any]], policy: str, tier: str
) -> None:
    """Summary, every turn's times and cached tokens, and the event log of a scarce pool."""
    name = policy.replace(" ", "") + tier
    golden.check(name, rows[name])


@pytest.mark.parametrize("tier", ["", "+offload"])
def test_the_document_s_other_fields_are_as_before(
    golden: Golden, rows: dict[str, dict[str, Any]], tier: str
) -> None:
    """Workload, machine, seed and the end of a simulation are reported as before."""
    golden.check(f"document{tier}", rows[f"document{tier}"])
