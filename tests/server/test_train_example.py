"""The small training loop of examples/rollouts, in short form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/rollouts/train.py"
SHORT = ("--steps", "2", "--groups", "1", "--samples", "2", "--turns", "2", "--blocks", "66")


@pytest.mark.server
@pytest.mark.long
def test_stock_and_agentkv_train_on_the_same_trajectories(demo_model_dir: Path) -> None:
    """Under one seed both give the same rewards and log-probabilities, also after an update of the
    weights."""
    command = [sys.executable, str(EXAMPLE), *SHORT, "--model", str(demo_model_dir)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr[-2000:]
    *steps, last = map(json.loads, ran.stdout.splitlines())
    assert [(step["policy"], step["step"]) for step in steps] == [
        *(("fcfs", 0), ("fcfs", 1)),
        *(("agentkv", 0), ("agentkv", 1)),
    ]
    (compared,) = last["compared"]
    assert compared["same_rewards"]
    assert compared["largest_logprob_difference"] < 1e-3
