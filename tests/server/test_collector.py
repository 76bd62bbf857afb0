"""Spans of the client and of a server, sent to a collector that is a program of its own: Phoenix.

It takes OTLP over HTTP and over gRPC, and gives back over REST what it has stored.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentkv.server.process import HTTPProcess, ServerProcess, free_port
from tests.server.chat import LIMIT_S, WORDS, wait_for

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(900)]

AGENT = """
import sys, agentkv, openai
client = openai.OpenAI(base_url=sys.argv[1], api_key="none")
with agentkv.session(client, job_id="collected") as job:
    for text in sys.argv[2:]:
        message = {"role": "user", "content": text}
        job.client.chat.completions.create(model="tiny", messages=[message], max_tokens=4)
        with job.tool("cat private.txt"):
            pass
"""
NAMES = {
    *("invoke_agent", "chat tiny", "execute_tool cat"),
    *("llm_request", "agentkv.turn", "agentkv.hold"),
}


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The addresses of a fresh Phoenix, for HTTP and for gRPC."""
    command = shutil.which("phoenix")
    if command is None:
        pytest.skip(
            "no phoenix on the PATH: pip install arize-phoenix in an environment of its own"
        )
    port, grpc_port = free_port(), free_port()
    environment = {
        **{"PHOENIX_HOST": "127.0.0.1", "PHOENIX_PORT": str(port)},
        **{"PHOENIX_GRPC_PORT": str(grpc_port), "PHOENIX_WORKING_DIR": str(tmp_path)},
        **{"PHOENIX_TELEMETRY_ENABLED": "false", "PYTHONPATH": ""},
    }
    with HTTPProcess(
        [command, "serve"],
        name="phoenix",
        port=port,
        log_path=tmp_path / "phoenix.log",
        environment=environment,
        health_path="/healthz",
    ) as started:
        yield started.root_url, f"http://127.0.0.1:{grpc_port}"


def spans_of(collector_url: str) -> list[dict[str, Any]]:
    """All that the collector has stored; empty before it has anything."""
    url = f"{collector_url}/v1/projects/default/spans"
    answer = httpx.get(url, params={"limit": 100}, timeout=LIMIT_S)
    return list(answer.json()["data"]) if answer.status_code == 200 else []


def test_a_collector_has_one_trace_of_client_and_server(
    collector: tuple[str, str], make_server: Callable[..., ServerProcess]
) -> None:
    """The client's spans by HTTP and the server's by gRPC are one trace with our attributes and
    events, and the tool's command is in neither."""
    http_url, grpc_url = collector
    environment = {"OTEL_BSP_SCHEDULE_DELAY": "100"}
    with make_server("--otlp-traces-endpoint", grpc_url, environment=environment) as server:
        subprocess.run(
            [sys.executable, "-c", AGENT, server.base_url, WORDS, f"{WORDS} {WORDS}"],
            check=True,
            timeout=LIMIT_S,
            env={
                **os.environ,
                "OTEL_TRACES_EXPORTER": "otlp",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_EXPORTER_OTLP_ENDPOINT": http_url,
            },
        )
        wait_for(lambda: {span["name"] for span in spans_of(http_url)} >= NAMES)
    # vLLM traces its own start, too
    everything = spans_of(http_url)
    (trace_id,) = {
        span["context"]["trace_id"] for span in everything if span["name"] == "invoke_agent"
    }
    spans = [span for span in everything if span["context"]["trace_id"] == trace_id]
    by_name = {name: [span for span in spans if span["name"] == name] for name in NAMES}
    assert len(by_name["chat tiny"]) == len(by_name["agentkv.turn"]) == 2
    (job,) = by_name["invoke_agent"]
    assert job["attributes"]["agentkv.turns"] == 2
    turns = {span["context"]["span_id"] for span in by_name["chat tiny"]}
    assert {span["parent_id"] for span in by_name["agentkv.turn"]} == turns
    events = [event["name"] for event in by_name["agentkv.hold"][0]["events"]]
    assert "pinned" in events
    assert "private.txt" not in repr(everything)
