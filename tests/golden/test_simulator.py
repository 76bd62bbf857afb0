"""The simulator's numbers are the same for every policy, with and without a DRAM tier.

`pytest tests/golden --regenerate` replaces the file; `git diff` then shows what has changed.
"""

import json
from pathlib import Path

import pytest

from agentkv.cli import main

pytestmark = pytest.mark.slow

EXPECTED = Path(__file__).parent / "expected" / "simulator.json"
POLICIES = (
    "fcfs",
    "continuum:paper",
    "continuum:released",
    'context_serve{"predictor":"default"}',
    'context_serve{"predictor":"context_serve"}',
    "agentkv",
)
MACHINE = ("--gpu", "rtx-5090", "--blocks", "420", "--dram-gib", "0.5")
JOBS = (
    *("--workload", "swebench", "--jobs", "28", "--turns", "8", "--token-scale", "0.25"),
    *("--jps", "1.5", "--tools", "longtail", "--seed", "3"),
)
"""Contexts of up to 3,000 tokens in a pool of 6,700: turns wait, and some are preempted."""
NUMBERS = (
    *("completed", "mean_s", "p99_s", "ttft_first_p99_s", "ttft_continuing_p99_s"),
    *("hit_rate", "preemptions", "recomputed_tokens", "reloaded_tokens"),
)


def test_the_numbers_of_each_policy_are_as_before(
    pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    """Means, tails, hits and lost tokens of six policies in a scarce pool, to six digits."""
    policies = [policy + tier for tier in ("", "+offload") for policy in POLICIES]
    flags = [flag for policy in policies for flag in ("--policy", policy)]
    assert main(["simulate", *MACHINE, *JOBS, *flags, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["policies"]
    assert len(entries) == len(policies)
    found = {
        name: {key: float(f"{entry[key]:.6g}") for key in NUMBERS if key in entry}
        for name, entry in entries.items()
    }
    if pytestconfig.getoption("--regenerate"):
        EXPECTED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    assert found == json.loads(EXPECTED.read_text(encoding="utf-8"))
