"""Reads an ASGI request body before the application does, and plays it back to the application.

Knows nothing about what is in the body.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from starlette.types import Message, Receive, Scope


async def read_body(receive: Receive) -> tuple[bytes | None, list[Message]]:
    """The whole body, and the messages it came in; None if the client left before its end.

    Memory: what the application would hold anyhow, once.
    """
    messages: list[Message] = []
    while True:
        message = await receive()
        messages.append(message)
        if message["type"] != "http.request":
            return None, messages
        if not message.get("more_body", False):
            return b"".join(part.get("body", b"") for part in messages), messages


def replay(messages: Iterable[Message], receive: Receive) -> Receive:
    """A `receive` that gives these messages first and then goes on with the connection's own.

    The going on matters: vLLM learns of a client's disconnect by calling `receive` after the body,
    and that is how it cancels the request.
    """
    pending = deque(messages)

    async def receive_replayed() -> Message:
        return pending.popleft() if pending else await receive()

    return receive_replayed


def replay_body(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives this body in one piece and then goes on as `replay` does."""
    return replay([{"type": "http.request", "body": body, "more_body": False}], receive)


def with_content_length(scope: Scope, num_bytes: int) -> Scope:
    """The scope for a body of another length; without the header where there was none (chunked)."""
    length = str(num_bytes).encode()
    headers = [
        (name, length if name == b"content-length" else value) for name, value in scope["headers"]
    ]
    return {**scope, "headers": headers}
