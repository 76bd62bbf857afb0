"""Times one tool of a job, and tells the job when it starts and when it ends."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from agentkv.tool_calls import ToolCall
from agentkv.wire import MAX_COMMAND_CHARS, MAX_TOOL_CHARS, ToolEvent, ToolState

if TYPE_CHECKING:
    from agentkv.job import Job


class ToolRun:
    """A tool while it runs: `with job.tool(call) as run`, or `async with`.

    `duration_s` is None until the tool ended; a tool that ended by an exception counts as well.
    """

    def __init__(self, job: Job[Any], call: ToolCall | str) -> None:
        self.duration_s: float | None = None
        self._job = job
        is_text = isinstance(call, str)
        self._name = None if isinstance(call, str) else _sendable(call.name, MAX_TOOL_CHARS)
        command = call if isinstance(call, str) else call.command
        self._command = None if command is None else _sendable(command, MAX_COMMAND_CHARS)
        self._text = (self._command if is_text or self._command else self._name) or "tool"
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
        self._job.ledger.finish_tool(self._text[:MAX_TOOL_CHARS], self.duration_s)
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


def _sendable(text: str, max_chars: int) -> str | None:
    """The text as the wire takes it: clipped, without lone surrogates; None if it is empty."""
    return text[:max_chars].encode(errors="replace").decode() or None
