"""A real model with attention and recurrent layers, of random weights, in processes of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

# Too little for all four at once; less is refused for the length that the model allows.
FLAGS = ["--blocks=16", "--jobs=4", "--turns=3", "--tool-s=0.2"]


def played(process: subprocess.Popen[str]) -> dict[str, Any]:
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    answer: dict[str, Any] = json.loads(text.splitlines()[-1])
    return answer


@pytest.mark.server
@pytest.mark.parametrize(
    "policy",
    [
        "agentkv",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("continuum", "context_serve")),
    ],
)
def test_a_policy_keeps_the_output_of_a_hybrid_model(policy: str) -> None:
    """A hit on a recurrent state that is not the prompt's would say something else."""
    began = [
        subprocess.Popen(
            [sys.executable, "-m", "studies.hybrid", each, *FLAGS],
            stdout=subprocess.PIPE,
            text=True,
        )
        for each in ("fcfs", policy)
    ]
    stock, ours = map(played, began)
    assert len(ours["outputs"]) == 12
    for turn, (tokens, _) in ours["outputs"].items():
        assert tokens == stock["outputs"][turn][0]
    assert ours["hit_share_of_later_turns"] > 0
