"""GET /v1/agentkv/timestamps over a real event log: parts, filters and the cap in bytes."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from agentkv.events import ToolStarted
from agentkv.integrations.vllm.clients import Clients
from agentkv.integrations.vllm.retention.tool_signals import MAX_COMMAND_CHARS
from agentkv.integrations.vllm.watch.log import EventLog
from agentkv.protocol import JobKey
from tests.integrations.vllm.api.fake_engine import Server

pytestmark = pytest.mark.asyncio

NUM_EVENTS = {"long": 180, "short": 3, "other": 40}
MAX_ANSWER_BYTES = 160_000


class LogServer:
    """The routes before an event log full of the longest commands; counts what the engine says."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.log = EventLog(max_events=10_000, clock=lambda: self.now_s)
        scope = {"type": "http", "headers": [], "client": ("127.0.0.1", 1)}
        name = Clients(None, {}).of(scope)
        for job_id, num_events in NUM_EVENTS.items():
            for _ in range(num_events):
                self.now_s += 1.0
                key = JobKey(name, job_id)
                self.log.on_event(ToolStarted(key, "", "é" * MAX_COMMAND_CHARS, None))
        self.most_bytes = 0
        self._ask = Server({"event_counts": self.log.counts, "events": self._events})

    def _events(self, slices: Any, since_s: float, viewer: str | None) -> Any:
        answer = self.log.part(slices, since_s, viewer)
        self.most_bytes = max(self.most_bytes, len(json.dumps(answer)))
        return answer

    async def get(self, query: str = "") -> httpx.Response:
        return await self._ask("GET", "/timestamps" + query)


async def test_a_long_log_is_read_in_parts() -> None:
    """The answer is the whole log, and no answer of the engine is longer than 160 kB."""
    server = LogServer()
    assert (await server.get()).json() == server.log.as_dict()
    assert server.most_bytes < MAX_ANSWER_BYTES


@pytest.mark.parametrize(
    ("query", "num_events"),
    [
        ("?job=short", {"short": 3}),
        ("?job=nobody", {}),
        ("?since=182", {"short": 1, "other": 40}),
    ],
)
async def test_one_job_or_later_events_can_be_asked_for(
    query: str, num_events: dict[str, int]
) -> None:
    """`job` names one job; `since` is the time of the last event that is known already."""
    jobs = (await LogServer().get(query)).json()["jobs"]
    assert {job_id: len(events) for job_id, events in jobs.items()} == num_events


async def test_an_answer_ends_after_its_limit_and_says_so() -> None:
    """`limit` is in bytes, exceeded by one part at most; the log is not read further."""
    server = LogServer()
    reply = await server.get("?limit=1000")
    assert reply.json()["truncated"] is True
    assert len(reply.content) < 1000 + MAX_ANSWER_BYTES
    assert len(reply.json()["jobs"]["long"]) == 50
