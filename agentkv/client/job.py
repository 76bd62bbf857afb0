"""One agent job as the client sees it: its id, its turns and tools, and the servers it used.

A session makes it and ends it; `tagger` numbers its turns.
"""

from __future__ import annotations

import os
import time
from collections.abc import Hashable, Mapping
from typing import Any, Generic, Protocol, Self, TypeVar, cast

from agentkv.client import context
from agentkv.client.delivery import Delivery
from agentkv.client.ledger import JobSummary, TaggedTurn, TurnLedger
from agentkv.client.server import Route, Server
from agentkv.protocol import (
    MAX_TOOL_CHARS,
    Tags,
    ToolEvent,
    parse_turn_count,
    routing_headers,
)
from agentkv.tool_calls import ToolCall
from agentkv.tracing import JobTrace, Span

ClientT = TypeVar("ClientT")

SUMMARY_S = 1.0
"""Longest time for which a summary waits for what servers say of a job that is over."""


class Listener(Protocol):
    """What hears of a job's tools and of its end: a server's routes, or an engine."""

    def tell(self, action: str, body: Mapping[str, object]) -> Delivery | None:
        """Report a "tool" or the "release". Never waits."""


class Job(Generic[ClientT]):
    """The job of `with agentkv.session(...) as job`; sessions make it.

    `client` is the client passed to the session, bound to this job in any thread or task; None if
    none was. All methods may be called from any thread or task.
    """

    client: ClientT

    def __init__(
        self,
        job_id: str,
        *,
        covered_client: object = None,
        on_missing_server: str = "warn",
        enclosing: Job[Any] | None = None,
        parent_job_id: str | None = None,
        expected_turns: int | None = None,
        server_url: str | None = None,
        affinity: str | None = None,
    ) -> None:
        self.job_id = job_id
        self.parent_job_id = parent_job_id
        self.covered_client = covered_client
        """The httpx client whose requests are its turns; None: all that are made inside of it."""
        self.enclosing = enclosing
        self.server_url = server_url
        self.on_missing_server = on_missing_server
        self.ledger = TurnLedger(job_id, clock=time.monotonic)
        self.listeners: dict[Hashable, Listener] = {}
        self.trace: JobTrace | None = None
        self.routing_headers = routing_headers(job_id, affinity)
        self._expected_turns = expected_turns
        self._is_ended = False
        self._process_id = os.getpid()
        self._releases: list[Delivery] = []

    @property
    def is_over(self) -> bool:
        """True after the session was left, and in a child process forked from inside it."""
        return self._is_ended or self._process_id != os.getpid()

    @property
    def headers(self) -> dict[str, str]:
        """Headers that make a request a turn of this job, sent by any library or program.

        The server numbers such turns. Name it by `session(server=...)`, so that it hears of the
        job's tools and its end.
        """
        tags = Tags(self.job_id, None, self.parent_job_id, None, self._expected_turns)
        return {**tags.as_headers(), **self.routing_headers}

    def last_step(self) -> None:
        """Declare the next request the last of this job: the server frees it with the reply."""
        self.ledger.mark_last_step()

    def limit_turns(self, num_turns: int) -> None:
        """Promise that the job takes at most `num_turns` turns: that turn is its last step.

        `expected_turns` of the session is only a hint. Raises TagError for a number out of range.
        """
        self._expected_turns = parse_turn_count(num_turns, "num_turns")
        self.ledger.limit_turns(num_turns)

    def tool(self, call: ToolCall | str) -> ToolRun:
        """Time a tool: `with job.tool(call):` around its run, or `async with`.

        call: what `agentkv.parse_tool_calls` gave, a command, or a tool's name. Its start and end
        are reported to the server in the background; the next turn carries the longest one.
        """
        return ToolRun(self, call)

    def summary(self) -> JobSummary:
        """The totals so far; the tokens are the server's, which says them when the job has ended.

        Waits for that for SUMMARY_S at most.
        """
        deadline_s = time.monotonic() + SUMMARY_S
        for release in self._releases:
            release.is_done.wait(max(0.0, deadline_s - time.monotonic()))
        servers = [each for each in self.listeners if isinstance(each, Server)]
        missing = [server.missing for server in servers if server.missing]
        no_tokens = f"not known: {missing[0]}" if missing else None
        if no_tokens is None and self._is_ended:
            no_tokens = "not known: no server has said them"
        return self.ledger.summary(no_tokens)

    def tags(self, turn: TaggedTurn) -> Tags:
        """The tags of a turn's request."""
        tool = turn.last_tool
        return Tags(
            job_id=self.job_id,
            is_last_step=True if turn.is_last_step else None,
            parent_job_id=self.parent_job_id,
            turn=turn.number,
            expected_turns=self._expected_turns,
            last_tool=None if tool is None else tool.text,
            last_tool_s=None if tool is None else tool.duration_s,
        )

    def route_to(self, server: Server, client: Any, headers: Mapping[str, str]) -> Route:
        """The way to a server for this job, by the httpx client and with the keys of its calls."""
        known = self.listeners.get(server)
        if isinstance(known, Route) and known.client is client and known.headers == headers:
            return known
        return Route(
            server,
            self.job_id,
            client=client,
            headers=headers,
            job_headers=self.routing_headers,
            on_missing=self.on_missing_server,
            on_answer=self.ledger.note_answer,
        )

    def end(self) -> None:
        """End the job: its servers free what they hold for it. Never waits."""
        if not self.is_over:
            self._is_ended = True
            self.release()

    def release(self) -> None:
        """Make the servers free what they hold for this job now. Never waits."""
        self._releases = self.tell("release", {})

    def tell(self, action: str, body: Mapping[str, object]) -> list[Delivery]:
        """Report a tool or the release to every server that the job used, in the background."""
        told = [listener.tell(action, body) for listener in list(self.listeners.values())]
        return [delivery for delivery in told if delivery is not None]


class ToolRun:
    """A running tool: `with job.tool(call) as run`, or `async with`.

    `duration_s` is None until the tool ended; a tool that ended by an exception counts as well.
    """

    def __init__(self, job: Job[Any], call: ToolCall | str) -> None:
        if not isinstance(call, (ToolCall, str)):
            raise TypeError(
                f"job.tool(): got {type(call).__name__}, allowed is a call that "
                "agentkv.parse_tool_calls(reply) gives, a command, or a tool's name"
            )
        self.duration_s: float | None = None
        self._job = job
        self._name = None if isinstance(call, str) else _sendable(call.name)
        self._command = _sendable(call if isinstance(call, str) else call.command)
        self._limit_s: float | None = None
        if not isinstance(call, str):
            from agentkv.commands.blocking import awaited  # `import agentkv` is not to wait for it

            self._limit_s = awaited(call).limit_s
        self._fields: Mapping[str, object] = {}
        self._started_at_s = 0.0
        self._span: Span | None = None

    def __enter__(self) -> Self:
        turn = self._job.ledger.last_number
        event = ToolEvent("started", self._name, self._command, None, turn, self._limit_s)
        self._fields = event.as_fields()
        if self._job.trace is not None:
            words = (self._command or "").split(maxsplit=1)
            self._span = self._job.trace.tool(self._name or (words[0] if words else "tool"))
        self._started_at_s = time.monotonic()
        self._report(self._fields)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.duration_s = time.monotonic() - self._started_at_s
        self._job.ledger.finish_tool(self._command or self._name or "tool", self.duration_s)
        self._report({**self._fields, "state": "finished", "duration_s": self.duration_s})
        if self._span is not None:
            self._span.leave()
            self._span.end(exc_info[1] if exc_info else None)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *exc_info: object) -> None:
        self.__exit__(*exc_info)

    def _report(self, fields: Mapping[str, object]) -> None:
        """Tell the servers of the job; before its first turn it has none."""
        if not self._job.is_over:
            self._job.tell("tool", fields)


def _sendable(text: str | None) -> str | None:
    """The text without lone surrogates, which the wire refuses; None if it is empty.

    Cut to what a turn's tag may hold, so that the queue stays small.
    """
    return (text or "")[:MAX_TOOL_CHARS].encode(errors="replace").decode() or None


def current_job() -> Job[Any] | None:
    """The job of the innermost session that this thread or task is in; None outside of any."""
    return cast("Job[Any] | None", context.current())


def job_covering(client: object) -> Job[Any] | None:
    """The innermost live job whose session covers this httpx client, or was entered without one."""
    job = cast("Job[Any] | None", context.innermost())
    while job is not None:
        if (job.covered_client is None or job.covered_client is client) and not job.is_over:
            return job
        job = job.enclosing
    return None
