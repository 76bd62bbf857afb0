"""`agentkv simulate calibrate` on a real server, and where there is none."""

import json
from pathlib import Path

import pytest

from agentkv.cli import main as agentkv
from agentkv.errors import RunError
from agentkv.evals.simulator.calibrate import TimedStep, fit, state_groups_of
from agentkv.evals.simulator.cost import FittedLine, StepBatch
from agentkv.evals.simulator.machine import Limits, make_machine
from agentkv.evals.simulator.simulate import main as simulate
from agentkv.server.process import ServerProcess
from tests.http_front import Answer, HttpFront

CALIBRATE = ("simulate", "calibrate")
NOWHERE = ["--base-url", "http://127.0.0.1:9/v1"]


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("profile.json", "is the server running"),
        ("there.json", "exists: choose another --out, or --force"),
        ("there.json/p.json", "there.json"),
    ],
)
def test_nothing_is_measured_in_vain(
    out: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An --out that exists or cannot be made is refused before the server is asked."""
    (tmp_path / "there.json").write_text("{}")
    assert agentkv([*CALIBRATE, *NOWHERE, "--out", str(tmp_path / out)]) == 2
    reported = capsys.readouterr().err
    assert message in reported
    assert ("is the server running" in reported) is (out == "profile.json")
    assert not (tmp_path / "profile.json").exists()


def test_a_probe_s_answer_of_another_shape_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that ignores the number of tokens exits with status 2."""
    answers = {
        "/v1/models": {"data": [{"id": "m"}]},
        "/tokenize": {"tokens": list(range(500))},
        "/v1/agentkv/info": {"policy": "continuum", "block_size": 16, "num_blocks": 99},
    }
    front = HttpFront(lambda _, path, *rest: Answer(200, answers.get(path, [])))
    front.start()
    try:
        assert (
            agentkv([*CALIBRATE, "--base-url", front.url, "--out", str(tmp_path / "profile.json")])
            == 2
        )
    finally:
        front.stop()
    assert "no 1 tokens came: is it a vLLM server?" in capsys.readouterr().err


def test_a_server_that_hides_its_recurrent_layers_is_not_measured() -> None:
    """Stock vLLM tells their large blocks, not their groups: its profile would be played wrong."""
    assert state_groups_of({"num_state_groups": 3}, 544) == 3
    assert state_groups_of(None, 32) == state_groups_of({}, 32) == 0
    with pytest.raises(RunError, match="blocks of 544 tokens: recurrent layers"):
        state_groups_of(None, 544)


@pytest.mark.server
def test_a_server_is_measured_and_simulated(
    tiny_continuum_server: ServerProcess, tmp_path: Path
) -> None:
    """A measured profile has the server's pool and times, and `simulate --gpu FILE` takes it."""
    out = tmp_path / "tiny.json"
    flags = ["--base-url", tiny_continuum_server.base_url, "--out", str(out), "--rounds", "2"]
    assert agentkv([*CALIBRATE, *flags]) == 0
    profile = json.loads(out.read_text())
    assert profile["block_tokens"] == 32
    assert profile["step"]["fixed_s"] > 0.0
    assert len(profile["measured"]["steps"]) >= 8
    assert make_machine(str(out), None, Limits()).name == "tiny"
    assert simulate(["--gpu", str(out), "--jobs", "5", "--jps", "1", "--json"]) == 0


TRUE = FittedLine(0.02, 0.001, 1e-6, 0.002, 4e-6)
REQUEST_S = 0.006


BATCHES = [
    *((StepBatch.of_prefill(num_tokens), True) for num_tokens in (16, 64, 256, 512, 1024, 1536)),
    *(
        (StepBatch.of_decodes(num_requests, num_tokens), False)
        for num_requests, num_tokens in ((1, 64), (1, 1500), (2, 300), (4, 700), (8, 200))
    ),
]
"""Each with or without the latency of a request."""


def timed(scale: float = 1.0) -> list[TimedStep]:
    """What the batches take, times and divided by `scale` in turn."""
    return [
        TimedStep(batch, seconds * scale ** (-1) ** index, has_request)
        for index, (batch, has_request) in enumerate(BATCHES)
        for seconds in [TRUE.step_s(batch) + REQUEST_S * has_request]
    ]


def test_exact_times_give_the_constants_back() -> None:
    """Exact times give all six constants back."""
    found = fit(timed())
    assert found.request_s == pytest.approx(REQUEST_S, rel=1e-4)
    for name in FittedLine.__slots__:
        assert getattr(found.cost, name) == pytest.approx(getattr(TRUE, name), rel=1e-4)
    assert found.max_error < 1e-6
