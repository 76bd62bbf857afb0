"""The answers of /v1/agentkv/* on a real server are the same for one scripted run.

That greedy outputs stay the same is checked by the truth-of-output test of the server's folder.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from agentkv.protocol import WIRE_FIELD
from agentkv.server.demo_model import MODEL_NAME
from agentkv.server.process import ServerProcess
from tests.golden.harness import Golden, masked

pytestmark = pytest.mark.server

VOLATILE = (
    r"version|vllm_version|num_blocks|max_num_.*|max_model_len|at_s|waited_s|held_s|idle_s|ttl_s|"
    r"ttl_left_s|queueing_delay_s|load_token_s|.*kv_cache_usage|request_ids|compared_.*tokens|"
    r"stock_hit_tokens|gained_engine_s|"
    r"host|ttft_s|took_s|gap_s|hold|p[59]0_s|(ttft|turn)_seconds_total"
)
PROMPT = " ".join(f"word{number}" for number in range(120))
BAD_REQUESTS: tuple[tuple[str, str, Any], ...] = (
    ("GET", "jobs/no-such-job", None),
    ("POST", "jobs/no-such-job/tool", {"state": "started", "tool": "ls"}),
    *(("POST", "jobs/no-such-job/release", {}), ("POST", "jobs/first/tool", {})),
    ("POST", "jobs/first/tool", {"state": "paused", "tool": "ls"}),
    ("POST", "jobs/first/tool", {"state": "finished", "command": "ls", "duration_s": -1}),
    *(("POST", "jobs/first/tool", ["started"]), ("GET", "jobs/first/tool", None)),
    *(("POST", "info", {}), ("DELETE", "jobs/first", None), ("GET", "nothing", None)),
    ("GET", "", None),
)
BAD_TAGS: tuple[dict[str, Any], ...] = (
    {"job_id": 7},
    {"job_id": ""},
    {"job_id": "x" * 10_000},
    {"job_id": "bad", "turn": 0},
    {"job_id": "bad", "is_last_step": "yes"},
    {"job_id": "bad", "last_tool": 1},
    {"job_id": "bad", "last_tool_s": -1.0},
    {"turn": 1},
    {"job_id": "bad", "vllm_xargs": {"job_id": "other"}},
)


class Run:
    """One client of the server; every answer that it asks for is kept under a name."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.answers: dict[str, Any] = {}
        self._num_turns = 0

    def keep(self, name: str, method: str, path: str, body: Any = None) -> None:
        reply = self.client.request(method, f"/v1/agentkv/{path}", json=body)
        self.answers[name] = [reply.status_code, masked(reply.json(), VOLATILE)]

    def turn(self, prompt: str, **fields: Any) -> str:
        request = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 8, "temperature": 0}
        reply = self.client.post("/v1/completions", json={**request, "ignore_eos": True, **fields})
        assert reply.status_code == 200, reply.text
        self._num_turns += 1
        text: str = reply.json()["choices"][0]["text"]
        return text

    def wait_for(self, condition: Callable[[Any], bool], path: str) -> None:
        """Poll a route until its answer is as wanted."""
        deadline_s = time.monotonic() + 60.0
        while not condition(self.client.get(f"/v1/agentkv/{path}").json()):
            assert time.monotonic() < deadline_s, f"{path} never became as wanted"
            time.sleep(0.05)

    def wait_until_read(self) -> None:
        """Wait until the reply of every turn has been read, which follows its end."""

        def is_read(answer: Any) -> bool:
            events = [event for events in answer["jobs"].values() for event in events]
            return sum(event.get("told_by") == "reply" for event in events) == self._num_turns

        self.wait_for(is_read, "timestamps")


@pytest.fixture(scope="module")
def run(routes_server: ServerProcess) -> Iterator[Run]:
    with httpx.Client(base_url=routes_server.root_url, timeout=120.0) as client:
        run = Run(client)
        _play(run)
        yield run


def _play(run: Run) -> None:
    """Two jobs of three turns and of one, tools in between, one release."""
    run.keep("info", "GET", "info")
    run.keep("stats of an idle server", "GET", "stats")
    run.keep("jobs of an idle server", "GET", "jobs")
    prompt = PROMPT + run.turn(PROMPT, job_id="first", turn=1)
    run.wait_until_read()
    run.keep("a job after its first turn", "GET", "jobs/first")
    for state, extra in (("started", {}), ("finished", {"duration_s": 0.25})):
        event = {"state": state, "command": "ls -la", "turn": 1, **extra}
        run.keep(f"a tool that has {state}", "POST", "jobs/first/tool", event)
    prompt += run.turn(prompt, job_id="first", turn=2, last_tool="ls", last_tool_s=0.25)
    run.wait_until_read()
    run.turn("Another job. " + PROMPT, job_id="second/with a slash", turn=1)
    run.wait_until_read()
    run.keep("two jobs", "GET", "jobs")
    run.keep("stats with two jobs", "GET", "stats")
    run.keep("a release", "POST", "jobs/second%2Fwith%20a%20slash/release", {})
    run.keep("a second release", "POST", "jobs/second%2Fwith%20a%20slash/release", {})
    run.turn(prompt, job_id="first", turn=3, is_last_step=True)
    run.wait_for(lambda answer: not answer["jobs"], "jobs")
    run.keep("stats at the end", "GET", "stats")
    run.keep("jobs at the end", "GET", "jobs")
    run.keep("timestamps", "GET", "timestamps")


def test_answers(golden: Golden, run: Run) -> None:
    """Every answer of a scripted run has the status, fields and values that it had."""
    for name, answer in run.answers.items():
        golden.check(name, answer)


def test_refused_requests(golden: Golden, run: Run) -> None:
    """Requests that the routes refuse get the status and the shape of error that they got."""
    for method, path, body in BAD_REQUESTS:
        reply = run.client.request(method, f"/v1/agentkv/{path}", json=body)
        text = f"{method} {path} {json.dumps(body)}"
        golden.check(text, [reply.status_code, masked(reply.json())])


def test_refused_tags(golden: Golden, run: Run) -> None:
    """A client of ours with malformed tags gets the status and the shape of error that it got."""
    for tags in BAD_TAGS:
        body = {"model": MODEL_NAME, "prompt": "hi", "max_tokens": 1, WIRE_FIELD: 1, **tags}
        reply = run.client.post("/v1/completions", json=body)
        error = masked(reply.json())["error"] if reply.status_code != 200 else None
        golden.check(f"tags {json.dumps(tags)[:60]}", [reply.status_code, error])


def test_metrics(golden: Golden, run: Run) -> None:
    """The server exports the same series of ours with the same labels."""
    lines = run.client.get("/metrics").text.splitlines()
    ours = [line for line in lines if line.startswith("agentkv:")]
    labels = r'(model_name|engine|le)="[^"]*",?'
    series = {re.sub(labels, r"\1,", line.rpartition(" ")[0]) for line in ours}
    golden.check("metrics", sorted(series))
