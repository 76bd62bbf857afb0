"""What `agentkv top` knows of a server: its newest snapshot, and what was decided.

Knows nothing of a terminal.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

import httpx

from agentkv.errors import AgentKVServerError
from agentkv.visible import visible, visible_values

SILENCE_S = 30.0
"""A server that is alive sends a snapshot a second; after this much silence it is given up."""
MAX_EVENTS_OF_JOB = 200
MAX_JOBS_REMEMBERED = 1000
NUM_PAST = 300
"""Snapshots over which times and rates are means, one a second."""
TURN_SECONDS = ("ttft_seconds_total", "turn_seconds_total")
MAX_OVER = 8
DECISIONS = frozenset(
    {"pinned", "decision", "unpinned", "held", "due", "trimmed", "preempted", "closed"}
)
LOSSES = ("pressure", "expired")
"""Ends of holds in which something was lost."""
OVER: Entry = {
    **{"state": "over", "why": None, "tool": None, "command": None, "tokens": 0},
    **{"expected_turns": None, "predicted_p50_s": None, "predicted_p90_s": None},
}
"""What a job that is over does not have."""

Entry = Mapping[str, Any]
"""A job or an event of a snapshot."""


class ShownJob(NamedTuple):
    """A job on one engine, as the screen knows it."""

    engine: int
    job_id: str


class LiveFeed:
    """The stream of one server, with or without `/v1` in its URL; `transport` is for tests."""

    def __init__(
        self, url: str, api_key: str | None, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.root_url, self._transport = url.rstrip("/").removesuffix("/v1"), transport
        self.headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}

    async def snapshots(self) -> AsyncIterator[dict[str, Any]]:
        """Yield snapshots as they come. Raises AgentKVServerError when there are no more, with
        what happened and what to do."""
        timeout = httpx.Timeout(SILENCE_S)
        try:
            async with (
                httpx.AsyncClient(
                    headers=self.headers, timeout=timeout, transport=self._transport
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
            problem = f"HTTP {status}: {visible(answer.text[:200])}"
        raise AgentKVServerError(f"{self.root_url} answers, but {problem}")


async def _events(answer: httpx.Response) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """The server-sent events of a response: name and data."""
    name = ""
    async for line in answer.aiter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value, object_hook=visible_values)


class Line(NamedTuple):
    """A line about decisions: of a hold from its start to its end, or of another event."""

    key: ShownJob
    text: str
    is_loss: bool = False


class Board:
    """The newest snapshot, and the events of all jobs since the stream was opened."""

    def __init__(self) -> None:
        self.engines: list[dict[str, Any]] = []
        self.lines: deque[Line] = deque(maxlen=MAX_EVENTS_OF_JOB)
        """What was decided last, about any job."""
        self.over: dict[ShownJob, Entry] = {}
        """How the jobs that ended last did so."""
        self._holds: dict[ShownJob, Line] = {}
        """The line of a hold that has not ended."""
        self._past: deque[dict[str, float]] = deque(maxlen=NUM_PAST)
        self.events: dict[ShownJob, deque[Entry]] = {}
        """What happened to each job, as far as it was seen."""
        self._seen_s: dict[int, float] = {}

    def update(self, snapshot: Mapping[str, Any]) -> None:
        """Take a snapshot; events that were in an earlier one are passed over."""
        self.engines = list(snapshot.get("engines", ()))
        for engine in self.engines:
            number, now_s = int(engine["engine"]), float(engine["at_s"])
            seen_s = self._seen_s.get(number, -1.0)
            seen_s = -1.0 if now_s < seen_s else seen_s  # the server was started again
            for event in engine["events"]:
                if event["at_s"] > seen_s:
                    self._add(ShownJob(number, event["job_id"]), event)
            self._seen_s[number] = now_s
        self._remember()

    def _add(self, key: ShownJob, event: Entry) -> None:
        events = self.events.pop(key, None) or deque(maxlen=MAX_EVENTS_OF_JOB)
        events.append(event)
        self.events[key] = events  # the last active one comes last
        if len(self.events) > MAX_JOBS_REMEMBERED:
            del self.events[next(iter(self.events))]
        self.over.pop(key, None)
        if event["event"] == "closed":
            self.over[key] = event
            if len(self.over) > MAX_OVER:
                del self.over[next(iter(self.over))]
        self._add_line(key, event)

    def _add_line(self, key: ShownJob, event: Entry) -> None:
        """One line for a hold: `decision` takes the place of `pinned`, its end stands behind."""
        name, text, reason = event["event"], event.get("text", ""), event.get("reason")
        is_loss = bool(event.get("miss")) or reason in LOSSES
        if name not in DECISIONS and not is_loss:
            return
        hold = self._holds.pop(key, None)
        if hold is not None and name in ("decision", "unpinned"):
            self.lines.remove(hold)
            text = text if name == "decision" else f"{hold.text}; {text}"
        line = Line(key, text, is_loss or name in ("preempted", "trimmed"))
        if name in ("pinned", "decision"):
            self._holds[key] = line
        elif hold is not None and name not in ("unpinned", "closed"):
            self._holds[key] = hold
        if name != "unpinned" or reason not in ("released", "last_step"):  # `closed` says it
            self.lines.append(line)

    def _remember(self) -> None:
        """Keep the totals of turns of the last snapshots."""
        now = {
            f"{which} {name}": self.total(name, which)
            for name in ("finished_turns_total", *TURN_SECONDS, "output_tokens_total")
            for which in ("later", "first")
        }
        now["at_s"] = max((float(engine["at_s"]) for engine in self.engines), default=0.0)
        if self._past and now["at_s"] < self._past[-1]["at_s"]:
            self._past.clear()  # the server was started again
        self._past.append(now)

    def speed(self) -> str:
        """Times and rates of the last five minutes, or since the start where fewer were seen."""
        then = self._past[0] if len(self._past) == NUM_PAST else {}
        since = {name: value - then.get(name, 0.0) for name, value in self._past[-1].items()}

        def mean(which: str, name: str) -> str:
            turns = since[f"{which} finished_turns_total"]
            return short_s(since[f"{which} {name}"] / turns) if turns else "-"

        ttft, turn = (
            f"{mean('later', name)} (first turns {mean('first', name)})" for name in TURN_SECONDS
        )
        tokens = since["first output_tokens_total"] + since["later output_tokens_total"]
        rate = tokens / max(since["at_s"], 1.0)
        return f"first token {ttft}  turn {turn}  {rate:,.1f} tokens/s"

    @property
    def jobs(self) -> dict[ShownJob, Entry]:
        """The jobs of the newest snapshot, and those that ended last."""
        live: dict[ShownJob, Entry] = {
            ShownJob(int(engine["engine"]), job["job_id"]): job
            for engine in self.engines
            for job in engine["jobs"]
        }
        over = {key: {**OVER, **end, "for_s": end["at_s"]} for key, end in self.over.items()}
        return over | live

    def total(self, group: str, name: str) -> float:
        """A number of a group of `stats`, added up over engines; 0 where there is none."""
        groups = ((engine.get("stats") or {}).get(group, {}) for engine in self.engines)
        return float(sum(numbers.get(name, 0) for numbers in groups))


def short_s(seconds: float) -> str:
    """A duration in up to five characters."""
    if seconds < 10.0:
        return f"{seconds:.1f}s"
    if seconds < 600.0:
        return f"{seconds:.0f}s"
    return f"{seconds / 60:.0f}m" if seconds < 36_000.0 else f"{seconds / 3600:.0f}h"
