"""The continuum policy in a real vLLM server: pins, idle expiry, gauges, start-up errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from agentkv.errors import ServerStartError
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


def test_several_choices_of_one_request_leave_one_pin(
    tiny_continuum_server: ServerProcess,
) -> None:
    """n = 3 is one turn of the job."""
    server = tiny_continuum_server
    chat(server, WORDS, n=3, temperature=1.0, job_id="choices")
    wait_for(lambda: agentkv_get(server, "jobs/choices")["live_requests"] == 0)
    assert agentkv_get(server, "jobs/choices")["turns"] == 1
    assert agentkv_get(server, "stats")["pinned_jobs"] == 1
    release(server, "choices")


def test_the_timestamps_survive_the_end_of_the_server(
    tier_server: ServerProcess, record_dir: Path
) -> None:
    """--run-output-dir holds every event, though vLLM kills its engine on the way out."""
    chat(tier_server, WORDS, job_id="kept")
    tier_server.stop()
    lines = (record_dir / "scheduler_timestamps.jsonl").read_text().splitlines()
    events = [event for event in map(json.loads, lines) if event.get("job_id") == "kept"]
    of_the_turn = [event["event"] for event in events]
    assert of_the_turn[:4] == ["arrival", "waiting_to_running", "finish", "pinned"]


@pytest.mark.long
def test_a_wrong_start_is_refused_with_a_reason(make_server: Callable[..., ServerProcess]) -> None:
    """The error of a server with a wrong setting names the setting and the valid ones."""
    server = make_server("--additional-config", '{"agentkv": {"tttl": "fixed"}}')
    server.start()
    with pytest.raises(ServerStartError, match="unknown key 'tttl'; valid keys: rules, ttl"):
        server.wait_until_ready()
