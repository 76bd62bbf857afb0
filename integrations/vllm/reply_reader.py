"""Finds what a finished turn's reply runs, from its tokens, off the engine's main thread.

Knows nothing of jobs, pins or vLLM: tokens in, a command out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agentkv.tool_calls import parse_tool_calls

from .context_serve import read_part
from .side_work import SideWork

MAX_REPLY_TOKENS = 8192
"""Tokens of a reply that are decoded, from its end, where the tool calls are."""
MAX_REPLY_CHARS = 4 * MAX_REPLY_TOKENS
"""Characters of it that are parsed, from its end: an ordinary token has four."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The last tokens of a reply; `stop_token_id` is the one that ended it, None if none did."""

    request_id: str
    token_ids: list[int]
    stop_token_id: int | None = None


@dataclass(frozen=True, slots=True)
class ReadReply:
    """What a reply runs; None if it runs nothing, or could not be read."""

    request_id: str
    command: str | None


def reply_text(reply: Reply, decode: Callable[[list[int]], str]) -> str:
    """The end of a reply as text.

    A stop token is text too, since some dialects end a call with one; it gets a line of its own,
    since after a closing fence nothing else may stand.
    """
    text = decode(reply.token_ids)
    if reply.stop_token_id is not None:
        text += "\n" + decode([reply.stop_token_id])
    return text[-MAX_REPLY_CHARS:]


def command_in(text: str) -> str | None:
    """The commands of a reply's tool calls, one a line; a tool that runs none gives its name."""
    calls = (call.command or call.name for call in parse_tool_calls(text))
    return "\n".join(call for call in calls if call) or None


class ReplyReader:
    """Reads replies as side work; `decode` makes text of tokens, special ones included.

    `on_read` is called after each one, in the thread that did the work. A reply that fails to be
    read has no result.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        side_work: SideWork,
        *,
        on_read: Callable[[], None],
    ) -> None:
        self._decode = decode
        self._side_work = side_work
        self._on_read = on_read
        self._results: deque[ReadReply] = deque()

    def read(self, reply: Reply) -> None:
        """Read one reply; its result is there at once, or, once side work is started, soon."""

        def task() -> None:
            command = command_in(reply_text(reply, self._decode))
            if command is not None:
                command = read_part(command)
            self._results.append(ReadReply(reply.request_id, command))
            self._on_read()

        if not self._side_work.run(task):
            self._results.append(ReadReply(reply.request_id, None))

    def take(self) -> Iterator[ReadReply]:
        """The results that are there, oldest first, each once."""
        while self._results:
            yield self._results.popleft()
