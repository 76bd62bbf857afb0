"""`agentkv simulate calibrate` on a real server, and where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentkv.evals.simulator.calibrate import main
from agentkv.evals.simulator.machine import Limits, make_machine
from agentkv.evals.simulator.simulate import main as simulate
from agentkv.server.process import ServerProcess
from agentkv.testing.http_front import Answer, HttpFront


def test_an_unreachable_server_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, and no file."""
    out = tmp_path / "profile.json"
    assert main(["--base-url", "http://127.0.0.1:9/v1", "--out", str(out)]) == 2
    assert "is the server running" in capsys.readouterr().err
    assert not out.exists()


def test_a_profile_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless --force says so; the server is not even asked."""
    out = tmp_path / "profile.json"
    out.write_text("{}")
    assert main(["--base-url", "http://127.0.0.1:9/v1", "--out", str(out)]) == 2
    assert "exists: choose another --out, or --force" in capsys.readouterr().err


def test_an_out_that_cannot_be_is_told_before_measuring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server, whose measuring takes minutes, is not even asked."""
    (tmp_path / "file").write_text("")
    flags = ["--base-url", "http://127.0.0.1:9/v1", "--out", str(tmp_path / "file" / "p.json")]
    assert main(flags) == 2
    assert "is the server running" not in capsys.readouterr().err


def test_a_probe_s_answer_of_another_shape_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2, with what was asked for."""
    answers = {
        "/v1/models": {"data": [{"id": "m"}]},
        "/tokenize": {"tokens": list(range(500))},
        "/v1/agentkv/info": {"policy": "continuum", "block_size": 16, "num_blocks": 99},
    }
    front = HttpFront(lambda _, path, *rest: Answer(200, answers.get(path, [])))
    front.start()
    try:
        assert main(["--base-url", front.url, "--out", str(tmp_path / "profile.json")]) == 2
    finally:
        front.stop()
    assert "asked for 1 tokens, got None: is it a vLLM server?" in capsys.readouterr().err


def test_a_size_below_zero_is_told_before_measuring(tmp_path: Path) -> None:
    """As argparse does."""
    flags = ["--base-url", "http://127.0.0.1:9/v1", "--out", str(tmp_path / "p.json")]
    with pytest.raises(SystemExit) as caught:
        main([*flags, "--kv-token-bytes", "-1"])
    assert caught.value.code == 2


@pytest.mark.server
def test_a_server_is_measured_and_simulated(
    tiny_fcfs_server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The profile has the server's pool and times, and `simulate --gpu FILE` takes it."""
    out = tmp_path / "tiny.json"
    flags = ["--base-url", tiny_fcfs_server.base_url, "--out", str(out), "--name", "tiny-cpu"]
    flags += ["--rounds", "2"]
    assert main(flags) == 0
    profile = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert profile == json.loads(out.read_text())
    assert profile["block_tokens"] == 32
    assert profile["step"]["fixed_s"] > 0.0
    assert len(profile["measured"]["steps"]) >= 8
    assert make_machine(str(out), None, Limits()).name == "tiny-cpu"
    assert simulate(["--gpu", str(out), "--jobs", "5", "--jps", "1", "--json"]) == 0
