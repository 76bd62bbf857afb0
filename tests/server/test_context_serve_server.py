"""The context_serve policy in a real vLLM server, which reads the replies itself.

Guided decoding makes the random model say what each test needs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentkv.durations import DurationPredictor
from agentkv.server.process import ServerProcess
from tests.conftest import TINY_ARGS, ServerPool
from tests.server.chat import LIMIT_S, WORDS, agentkv_get, chat, metric, wait_for

pytestmark = pytest.mark.server

USAGE = "vllm:kv_cache_usage_perc"
CONTINUUM_TTL_S = 2.0
MADE_UP, KNOWN = "frobnicate --all", "reticulate splines"
NUM_KNOWN = 10


@pytest.fixture(scope="module")
def state_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in which KNOWN is slow."""
    path = tmp_path_factory.mktemp("predictor") / "state.json"
    predictor = DurationPredictor()
    for index in range(NUM_KNOWN):
        predictor.observe(KNOWN, 60.0 + index)
    predictor.save(path)
    return path


@pytest.fixture
def server(server_pool: ServerPool, tiny_model_dir: Path, state_path: Path) -> ServerProcess:
    """The tiny model under context_serve; it has a state at start, and saves twice a second."""
    settings = {
        "predictor": "default",
        "predictor_state": str(state_path),
        "predictor_save_s": 0.5,
    }
    config = ("--additional-config", json.dumps({"agentkv": settings}))
    return server_pool.get(tiny_model_dir, *TINY_ARGS, *config, policy="context_serve")


def says(server: ServerProcess, job_id: str, command: str) -> None:
    """A turn whose reply runs `command` in a fence; on return the job's pin is decided about."""
    choice = {"choice": [f"```bash\n{command}\n```"]}
    body = {"max_tokens": 64, "ignore_eos": False, "structured_outputs": choice}
    reply = chat(server, WORDS, job_id=job_id, **body)
    assert reply["choices"][0]["message"]["content"] == choice["choice"][0]
    wait_for(lambda: agentkv_get(server, f"jobs/{job_id}")["predicted_speed"] is not None)


def tell(server: ServerProcess, job_id: str, **event: Any) -> httpx.Response:
    url = f"{server.base_url}/agentkv/jobs/{job_id}/tool"
    return httpx.post(url, json=event, timeout=LIMIT_S)


def events_of(server: ServerProcess, job_id: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = agentkv_get(server, "timestamps")["jobs"][job_id]
    return events


def kept(state_path: Path) -> DurationPredictor:
    """The predictor that a server started now would have."""
    predictor = DurationPredictor()
    assert predictor.load(state_path)
    return predictor


def event_of(server: ServerProcess, job_id: str, name: str) -> dict[str, Any]:
    (event,) = [event for event in events_of(server, job_id) if event["event"] == name]
    return event


def test_a_fast_command_in_the_reply_pins(server: ServerProcess) -> None:
    """`ls`, read by the server itself; the job says what was predicted, and why."""
    before = metric(server, "agentkv:pins_total", speed="fast")
    says(server, "fast", "ls -la")
    job = agentkv_get(server, "jobs/fast")
    assert (job["command"], job["predicted_speed"]) == ("ls -la", "fast")
    assert job["prediction_explanation"]
    decision, pinned = (event_of(server, "fast", name) for name in ("decision", "pinned"))
    assert (decision["told_by"], decision["ttl_s"] > 0) == ("reply", True)
    assert pinned["blocks"] > 0
    wait_for(lambda: metric(server, "agentkv:pins_total", speed="fast") == before + 1)
    wait_for(lambda: metric(server, USAGE) == 0)
    # in an idle engine: the predicted TTL and no other
    assert event_of(server, "fast", "unpinned")["held_s"] >= decision["ttl_s"]


def test_a_slow_command_in_the_reply_frees_at_once(server: ServerProcess) -> None:
    """`pip install`: usage falls long before Continuum's TTL would be over."""
    says(server, "slow", "pip install torch")
    wait_for(lambda: metric(server, USAGE) == 0)
    job = agentkv_get(server, "jobs/slow")
    assert (job["predicted_speed"], job["pinned_blocks"], job["ttl_s"]) == ("slow", 0, 0.0)
    freed = event_of(server, "slow", "unpinned")
    assert (freed["reason"], freed["held_s"] < CONTINUUM_TTL_S / 2) == ("slow", True)


def test_an_unknown_program_gets_continuums_ttl(server: ServerProcess) -> None:
    """UNCERTAIN: pinned for the 2 s of its cold start."""
    says(server, "unknown", "defrobnicate")
    job = agentkv_get(server, "jobs/unknown")
    assert (job["predicted_speed"], job["ttl_s"]) == ("uncertain", CONTINUUM_TTL_S)
    assert job["ttl_reason"].startswith("uncertain, so Continuum's: ")
    wait_for(lambda: agentkv_get(server, "jobs/unknown")["pinned_blocks"] == 0)
    assert event_of(server, "unknown", "unpinned")["held_s"] >= CONTINUUM_TTL_S


def test_what_the_client_says_counts_more_than_the_reply(server: ServerProcess) -> None:
    """`started` with a slow command frees what the reply's `ls` had pinned."""
    says(server, "told", "ls")
    assert tell(server, "told", state="started", command="pip install torch").status_code == 200
    wait_for(lambda: agentkv_get(server, "jobs/told")["predicted_speed"] == "slow")
    assert event_of(server, "told", "unpinned")["held_s"] < CONTINUUM_TTL_S / 2
    told_by = [event["told_by"] for event in events_of(server, "told") if "told_by" in event]
    assert told_by == ["reply", "client"]


def test_what_an_earlier_server_learned_is_known(server: ServerProcess) -> None:
    """A server knows what an earlier one learned, from the file that it left."""
    says(server, "earlier", KNOWN)
    assert agentkv_get(server, "jobs/earlier")["predicted_speed"] == "slow"


def test_ten_slow_runs_make_a_tool_slow_and_are_kept(
    server: ServerProcess, state_path: Path
) -> None:
    """Learned from feedback, and in the file soon after: vLLM kills its engine on the way out."""
    says(server, "learning", MADE_UP)
    assert agentkv_get(server, "jobs/learning")["predicted_speed"] == "uncertain"
    for index in range(10):
        told = {"command": MADE_UP, "duration_s": 60.0 + index}
        assert tell(server, "learning", state="finished", **told).status_code == 200
    says(server, "learned", MADE_UP)
    assert agentkv_get(server, "jobs/learned")["predicted_speed"] == "slow"
    wait_for(lambda: kept(state_path).num_observed >= NUM_KNOWN + 10)
    assert kept(state_path).predict(MADE_UP).speed == "slow"
