"""One agent job as the client sees it: its id, its books, its tools, and the servers it used."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from agentkv.client.ledger import JobSummary, OpenTurn, TurnLedger
from agentkv.client.server import KnownServer
from agentkv.protocol import MAX_TOOL_CHARS, Tags, ToolEvent, ToolState, parse_turn_count
from agentkv.tool_calls import ToolCall

if TYPE_CHECKING:
    pass


ClientT = TypeVar("ClientT")


class Job(Generic[ClientT]):
    """What `with agentkv.session(...) as job` gives; made by a session, not by hand.

    `client` is a drop-in for the client given to the session, None where none was given. All
    methods may be called from any thread or task.
    """

    client: ClientT

    def __init__(
        self,
        job_id: str,
        *,
        enclosing: Job[Any] | None,
        parent_job_id: str | None,
        expected_turns: int | None,
        server_url: str | None,
        on_missing_server: str,
    ) -> None:
        self.job_id = job_id
        self.parent_job_id = parent_job_id
        self.enclosing = enclosing
        self.server_url = server_url
        self.on_missing_server = on_missing_server
        self.ledger = TurnLedger(job_id, clock=time.monotonic)
        self._expected_turns = expected_turns
        self._servers: list[KnownServer] = []
        self._is_ended = False
        self._process_id = os.getpid()

    @property
    def is_over(self) -> bool:
        """True after the session was left, and in a child process forked from inside it."""
        return self._is_ended or self._process_id != os.getpid()

    def last_step(self) -> None:
        """Say that the next request is the last of this job: the server frees it with the reply."""
        self.ledger.mark_last_step()

    def limit_turns(self, num_turns: int) -> None:
        """Say that the job never takes more than `num_turns` turns: that turn is its last step.

        `expected_turns` of the session is a hint only; this is a promise. Raises TagError for a
        number out of range.
        """
        self._expected_turns = parse_turn_count(num_turns, "num_turns")
        self.ledger.limit_turns(num_turns)

    def tool(self, call: ToolCall | str) -> ToolRun:
        """Time a tool: a parsed call, a command, or a tool's name; TypeError for all else.

        `with job.tool(call):` or `async with`. The server hears of it in the background, and once
        more with the next turn.
        """
        return ToolRun(self, call)

    def summary(self) -> JobSummary:
        """What the job took so far; also after it is over."""
        return self.ledger.summary()

    def tags(self, turn: OpenTurn) -> Tags:
        """The tags that the request of a turn carries."""
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

    def note_server(self, server: KnownServer) -> None:
        """Remember a server that a tagged request went to: it hears of tools and of the end."""
        if server not in self._servers:
            self._servers.append(server)

    def send_tool_event(self, event: ToolEvent) -> None:
        """Tell the servers of this job about a tool, in the background."""
        if not self.is_over:
            for server in self._servers:
                server.send_tool_event(self.job_id, event)

    def end(self) -> None:
        """The job is over: its servers free what they hold for it. Never waits."""
        if not self.is_over:
            self._is_ended = True
            self.release()

    def release(self) -> None:
        """Have the servers free what they hold for this job now. Never waits."""
        for server in self._servers:
            server.release(self.job_id)


class ToolRun:
    """A tool while it runs: `with job.tool(call) as run`, or `async with`.

    `duration_s` is None until the tool ended; a tool that ended by an exception counts as well.
    """

    def __init__(self, job: Job[Any], call: ToolCall | str) -> None:
        self.duration_s: float | None = None
        self._job = job
        if not isinstance(call, (ToolCall, str)):
            raise TypeError(
                f"job.tool(): got {type(call).__name__}, allowed is a call that "
                "agentkv.parse_tool_calls(reply) gives, a command, or a tool's name"
            )
        name, command = (None, call) if isinstance(call, str) else (call.name, call.command)
        self._name = _sendable(name)
        self._command = _sendable(command)
        self._turn: int | None = None
        self._started_at_s = 0.0

    def __enter__(self) -> Self:
        self._turn = self._job.ledger.begin_tool()
        self._started_at_s = time.monotonic()
        self._job.send_tool_event(self._event("started"))
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.duration_s = time.monotonic() - self._started_at_s
        self._job.ledger.finish_tool(self._command or self._name or "tool", self.duration_s)
        self._job.send_tool_event(self._event("finished"))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(exc_type, exc, traceback)

    def _event(self, state: ToolState) -> ToolEvent:
        return ToolEvent(
            state=state,
            tool=self._name,
            command=self._command,
            duration_s=self.duration_s,
            turn=self._turn,
        )


def _sendable(text: str | None) -> str | None:
    """The text as the wire takes it, without lone surrogates; None if there is none.

    Clipped to what the server keeps of a command, so that what waits in the queue stays small.
    """
    return (text or "")[:MAX_TOOL_CHARS].encode(errors="replace").decode() or None
