"""The continuum policy in a real vLLM server, and the commands that look at one."""

import json
from typing import Any

import httpx
import pytest

from agentkv.cli import main as agentkv
from agentkv.server.process import ServerProcess
from tests.server.chat import LIMIT_S, WORDS, agentkv_get, chat, metric, wait_for

pytestmark = pytest.mark.server

USAGE = "vllm:kv_cache_usage_perc"
PINNED = "agentkv:pinned_blocks"


def release(server: ServerProcess, job_id: str) -> httpx.Response:
    return httpx.post(f"{server.base_url}/agentkv/jobs/{job_id}/release", timeout=LIMIT_S)


def test_a_pin_expires_in_an_idle_engine_and_the_gauge_falls(
    tiny_continuum_server: ServerProcess,
) -> None:
    """No request comes in between; the record says how long the pin was held: its TTL."""
    server = tiny_continuum_server
    expired = metric(server, "agentkv:pin_ends_total", reason="expired")
    chat(server, WORDS, job_id="idle")
    wait_for(lambda: metric(server, PINNED) > 0)
    assert metric(server, USAGE) > 0
    wait_for(lambda: metric(server, USAGE) == 0 and metric(server, PINNED) == 0)
    (unpinned,) = [
        event
        for event in agentkv_get(server, "timestamps")["jobs"]["idle"]
        if event["event"] == "unpinned"
    ]
    assert unpinned["reason"] == "expired"
    assert unpinned["held_s"] >= 2.0
    assert metric(server, "agentkv:pin_ends_total", reason="expired") > expired


def test_a_stop_string_ends_a_turn_with_a_pin(tiny_continuum_server: ServerProcess) -> None:
    """vLLM finds stop strings in the API server and aborts in the engine: still a turn."""
    server = tiny_continuum_server
    text = chat(server, WORDS, max_tokens=24)["choices"][0]["message"]["content"]
    stop = text[len(text) // 2 :][:4]
    chat(server, WORDS, max_tokens=24, stop=[stop], job_id="stopped")
    wait_for(lambda: agentkv_get(server, "jobs/stopped")["live_requests"] == 0)
    assert agentkv_get(server, "jobs/stopped")["pinned_blocks"] > 0
    release(server, "stopped")


def test_the_timestamps_survive_the_end_of_the_server(
    scarce_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """--run-output-dir holds every event, though vLLM kills its engine on the way out."""
    chat(scarce_server, WORDS, job_id="kept")
    scarce_server.stop()
    newest = max((tmp_path_factory.getbasetemp() / "record").glob("*.jsonl"))
    events = map(json.loads, newest.read_text().splitlines())
    of_the_turn = [event["event"] for event in events if event.get("job_id") == "kept"]
    assert of_the_turn[:4] == ["arrival", "waiting_to_running", "finish", "pinned"]


def verify(
    server: ServerProcess, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, dict[str, Any], str]:
    """Exit status, JSON document and the text before it."""
    # on a busy machine a gap of the default second may outlast the TTL of two
    flags = ["--url", server.base_url, "--json", "--gap-s", "0.4", *options]
    status = agentkv(["verify-pin", *flags])
    captured = capsys.readouterr()
    return status, json.loads(captured.out), captured.err


def test_continuum_passes(
    tiny_continuum_server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 0; what is pinned after each turn is exactly the whole blocks of its context."""
    status, document, text = verify(tiny_continuum_server, capsys)
    assert status == 0, text
    assert document["policy"] == "continuum"
    assert document["ttl_trial"]["held_s"] > document["ttl_trial"]["ttl_s"] - 0.1
    assert all(check["passed"] for check in document["checks"])
    *pinned, last = document["turns"]
    assert [row["blocks_after"] for row in pinned] == [row["blocks_full"] for row in pinned]
    assert last["blocks_after"] == 0
