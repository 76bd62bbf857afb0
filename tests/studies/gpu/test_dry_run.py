"""`studies.gpu.compare --gpu cpu`: all that one command does on a GPU server, without one."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentkv.evals.simulator.machine import read_profile
from studies.gpu.compare import main

pytestmark = [pytest.mark.server, pytest.mark.long]

FEW = ("--policy", "fcfs", "--policy", "agentkv", "--repeats", "1")


def play(out: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[str, Any, Any]:
    """The tables that are printed, and the documents of the comparison and of the simulator."""
    assert main(["--gpu", "cpu", "--out", str(out), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    printed = "\n".join(line for line in lines if not line.startswith("{"))
    documents = (json.loads((out / name).read_text()) for name in ("bench.json", "simulated.json"))
    return printed, *documents


def test_a_server_is_measured_played_and_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real servers play the same jobs under two policies, and the profile of a stock one says what
    the simulator expects of both; with everything on disk the document is the same."""
    printed, document, simulated = play(tmp_path / "out", capsys, *FEW)
    fcfs, agentkv_ = (document["policies"][name] for name in ("fcfs", "agentkv"))
    for found in (fcfs, agentkv_):
        counts = [found[name] for name in ("jobs", "completed", "failed", "cut")]
        assert counts == [4, 4, 0, 0]
    assert agentkv_["turns_compared"] == 12
    assert agentkv_["turns_differing"] == 0
    profile = read_profile(tmp_path / "out" / "profile.json")
    assert (profile.num_blocks, profile.block_tokens, profile.kv_token_bytes) == (33, 32, 2048)
    assert simulated["simulated_mean_s"].keys() == {"cpu, measured"}
    assert simulated["simulated_mean_s"]["cpu, measured"].keys() == document["policies"].keys()
    assert "Simulated on cpu, measured:" in printed
    again, same, _ = play(tmp_path / "out", capsys, *FEW, "--resume")
    assert again == printed
    assert same["policies"] == document["policies"]
