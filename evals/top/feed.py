"""Reads the stream of snapshots of a running server, and remembers what happened to its jobs.

`agentkv top` shows it. Knows the shape of GET /v1/agentkv/live (docs/reference/routes.md), which is
the only route it asks, and nothing of terminals.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

import httpx

from agentkv.errors import AgentKVServerError

SILENCE_S = 30.0
"""A server that is alive sends a snapshot a second; after this much silence it is given up."""
MAX_EVENTS_OF_JOB = 200
MAX_JOBS_REMEMBERED = 1000

Event = Mapping[str, Any]


class ShownJob(NamedTuple):
    """A job on one engine, as the screen knows it."""

    engine: int
    job_id: str


class LiveFeed:
    """The stream of one server, with or without `/v1` in its URL; `transport` is for tests."""

    def __init__(
        self, url: str, api_key: str | None, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.root_url = url.rstrip("/").removesuffix("/v1")
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._transport = transport

    async def snapshots(self) -> AsyncIterator[dict[str, Any]]:
        """Yield snapshots as they come. Raises AgentKVServerError when there are no more, with
        what happened and what to do."""
        timeout = httpx.Timeout(SILENCE_S)
        try:
            async with (
                httpx.AsyncClient(
                    headers=self._headers, timeout=timeout, transport=self._transport
                ) as client,
                client.stream("GET", f"{self.root_url}/v1/agentkv/live") as answer,
            ):
                await self._require_stream(answer)
                async for name, data in _events(answer):
                    if name == "gone":
                        raise AgentKVServerError(f"{self.root_url}: {data.get('problem')}")
                    yield data
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise AgentKVServerError(
                f"{self.root_url} does not answer ({type(error).__name__}: {error}): start the "
                "server, or give its address with --url"
            ) from error
        raise AgentKVServerError(f"{self.root_url} has ended the stream")

    async def _require_stream(self, answer: httpx.Response) -> None:
        if answer.is_success and "event-stream" in answer.headers.get("content-type", ""):
            return
        status = answer.status_code
        if status in (401, 403):
            problem = f"HTTP {status}: give the server's key with --api-key"
        elif status == 404 or answer.is_success:
            problem = (
                "it has no /v1/agentkv/live. Its policy is a stock one (fcfs or priority), or its "
                "agentkv is older than this one: start it with --scheduling-policy agentkv or "
                "continuum"
            )
        else:
            await answer.aread()
            problem = f"HTTP {status}: {_message(answer)}"
        raise AgentKVServerError(f"{self.root_url} answers, but {problem}")


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]


async def _events(answer: httpx.Response) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """The server-sent events of a response: name and data."""
    name = ""
    async for line in answer.aiter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


class Board:
    """The newest snapshot, and the events of all jobs since the stream was opened."""

    def __init__(self) -> None:
        self.engines: list[dict[str, Any]] = []
        self.log: deque[tuple[ShownJob, Event]] = deque(maxlen=MAX_EVENTS_OF_JOB)
        """What happened last, to any job."""
        self._events: dict[ShownJob, deque[Event]] = {}
        self._seen_s: dict[int, float] = {}

    def update(self, snapshot: Mapping[str, Any]) -> None:
        """Take a snapshot; events that were in an earlier one are passed over."""
        self.engines = list(snapshot.get("engines", ()))
        for engine in self.engines:
            number, now_s = int(engine["engine"]), float(engine["at_s"])
            seen_s = self._seen_s.get(number, -1.0)
            if now_s < seen_s:  # the server was started again
                seen_s = -1.0
            for event in engine["events"]:
                if event["at_s"] > seen_s:
                    self._add(ShownJob(number, event["job_id"]), event)
            self._seen_s[number] = now_s

    def _add(self, key: ShownJob, event: Event) -> None:
        events = self._events.pop(key, None) or deque(maxlen=MAX_EVENTS_OF_JOB)
        events.append(event)
        self._events[key] = events  # the last active one comes last
        if len(self._events) > MAX_JOBS_REMEMBERED:
            del self._events[next(iter(self._events))]
        self.log.append((key, event))

    @property
    def jobs(self) -> dict[ShownJob, dict[str, Any]]:
        """The jobs of the newest snapshot."""
        return {
            ShownJob(int(engine["engine"]), job["job_id"]): job
            for engine in self.engines
            for job in engine["jobs"]
        }

    def events_of(self, key: ShownJob) -> list[Event]:
        """What happened to a job, as far as it was seen."""
        return list(self._events.get(key, ()))

    def total(self, *path: str) -> float:
        """A number of `stats`, added up over engines; 0 where there is none."""
        return sum(_number(engine.get("stats"), path) for engine in self.engines)


def _number(value: Any, path: tuple[str, ...]) -> float:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, int | float) else 0.0
