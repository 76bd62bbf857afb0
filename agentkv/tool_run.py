"""Times one tool of a job, and tells the job when it starts and when it ends."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from agentkv.tool_calls import ToolCall
from agentkv.wire import MAX_TOOL_CHARS, ToolEvent, ToolState

if TYPE_CHECKING:
    from agentkv.job import Job


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
