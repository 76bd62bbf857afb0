"""One agent job as the client sees it: its id, its tools, and its links to the servers it used.

A session makes it and ends it; `tagged_call` numbers its turns through `ledger`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Generic, Self, TypeVar, cast

from agentkv.client import context
from agentkv.client.ledger import JobSummary, NumberedTurn, TurnLedger
from agentkv.client.server import JobLink, Server
from agentkv.client.transport import ServerTransport, job_path
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


class Job(Generic[ClientT]):
    """The job of `with agentkv.session(...) as job`; sessions make it.

    `client` is a drop-in for the client passed to the session, or None if none was. All methods
    may be called from any thread or task.
    """

    client: ClientT

    def __init__(
        self,
        job_id: str,
        *,
        covered_client: ClientT,
        has_headers: bool,
        on_missing_server: str,
        enclosing: Job[Any] | None = None,
        parent_job_id: str | None = None,
        expected_turns: int | None = None,
        server_url: str | None = None,
        affinity: str | None = None,
    ) -> None:
        self.job_id = job_id
        self.parent_job_id = parent_job_id
        self.covered_client = covered_client
        self.enclosing = enclosing
        self.server_url = server_url
        self.on_missing_server = on_missing_server
        self.ledger = TurnLedger(job_id, clock=time.monotonic)
        self.has_headers = has_headers
        self.links: dict[Server, JobLink] = {}
        self.trace: JobTrace | None = None
        self._path = job_path(job_id)
        self.routing_headers = routing_headers(job_id, affinity) if has_headers else {}
        self._expected_turns = expected_turns
        self._is_ended = False
        self._process_id = os.getpid()

    @property
    def is_over(self) -> bool:
        """True after the session was left, and in a child process forked from inside it."""
        return self._is_ended or self._process_id != os.getpid()

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
        """Time a tool: a parsed call, a command, or a tool's name; TypeError for anything else.

        Use it as `with job.tool(call):` or `async with`. It is reported to the server in the
        background, and once more with the next turn.
        """
        return ToolRun(self, call)

    def summary(self) -> JobSummary:
        """The totals of the job so far; also available after it is over."""
        return self.ledger.summary()

    def tags(self, turn: NumberedTurn) -> Tags:
        """The tags for the request of a turn."""
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

    def link_to(
        self, server: Server, client: Any, headers: Mapping[str, str], *, is_direct: bool = True
    ) -> JobLink:
        """The way to a server for this job, by an SDK client or by connections of our own."""
        link = self.links.get(server)
        if link is None or not link.transport.is_by(client, headers):
            transport = ServerTransport(
                client, headers, job_headers=self.routing_headers, is_direct=is_direct
            )
            warns = self.on_missing_server == "warn"
            link = JobLink(server, transport, warns, self.ledger.note_savings)
        server.notice_another_key(link.transport)
        return link

    def end(self) -> None:
        """End the job: its servers free what they hold for it. Never waits."""
        if not self.is_over:
            self._is_ended = True
            self.release()

    def release(self) -> None:
        """Make the servers free what they hold for this job now. Never waits."""
        self.tell_servers("release", {})

    def tell_servers(self, action: str, body: Mapping[str, object]) -> None:
        """Post to one of the job's routes on every server it used, in the background."""
        for link in list(self.links.values()):
            if link.server.missing is None:
                link.submit("POST", f"{self._path}/{action}", body)


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
        turn = self._job.ledger.begin_tool()
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
            self._job.tell_servers("tool", fields)


def _sendable(text: str | None) -> str | None:
    """The text without lone surrogates, which the wire refuses; None if it is empty.

    Cut to what a turn's tag may hold, so that the queue stays small.
    """
    return (text or "")[:MAX_TOOL_CHARS].encode(errors="replace").decode() or None


def current_job() -> Job[Any] | None:
    """The job of the innermost session that this thread or task is in; None outside of any."""
    return cast("Job[Any] | None", context.current())


def job_covering(client: object) -> Job[Any] | None:
    """The innermost live job of a session that was entered with this client, or without one."""
    job = cast("Job[Any] | None", context.innermost())
    while job is not None:
        if (job.covered_client is None or job.covered_client is client) and not job.is_over:
            return job
        job = job.enclosing
    return None
