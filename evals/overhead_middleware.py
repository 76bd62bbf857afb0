"""What the plugin's middleware costs a request of 10 kB that carries none of our fields."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentkv.integrations.vllm.api.middleware import AgentKVMiddleware

from .side_by_side import Row, difference_row, timed_async, without_garbage_collection

BODY_BYTES = 10_000
NUM_REQUESTS = 2000
TARGET_MS = 0.1


def measure() -> Row:
    """The middleware in front of an application, against the application alone."""
    return asyncio.run(_measure())


async def _measure() -> Row:
    app = Starlette()
    app.state.vllm_config = SimpleNamespace(additional_config={"agentkv": {"policy": "continuum"}})
    app.state.engine_client = SimpleNamespace(engine_core=None)  # never asked: no field of ours
    middleware = AgentKVMiddleware(_read_body)
    body = _body()
    bare_s: list[float] = []
    ours_s: list[float] = []
    with without_garbage_collection():
        for index in range(NUM_REQUESTS + 1):
            bare = await timed_async(lambda: _request(_read_body, app, body))
            ours = await timed_async(lambda: _request(middleware, app, body))
            if index:  # the first call sets the middleware up
                bare_s.append(bare)
                ours_s.append(ours)
    name = f"middleware, {len(body) / 1000:.0f} kB without our fields"
    return difference_row(name, bare_s, ours_s, target_ms=TARGET_MS)


def _body() -> bytes:
    request = {"model": "m", "messages": [{"role": "user", "content": ""}], "max_tokens": 16}
    padding = BODY_BYTES - len(json.dumps(request))
    request["messages"] = [{"role": "user", "content": "x" * padding}]
    return json.dumps(request).encode()


async def _request(app: ASGIApp, state: Starlette, body: bytes) -> None:
    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"user-agent", b"agent/1.0")],
        "app": state,
    }
    messages: list[Message] = [
        {"type": "http.disconnect"},
        {"type": "http.request", "body": body, "more_body": False},
    ]

    async def receive() -> Message:
        return messages.pop()

    await app(scope, receive, _send)


async def _send(message: Message) -> None:
    return None


async def _read_body(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that reads the request and answers with an empty body."""
    message = await receive()
    assert len(message["body"]) == BODY_BYTES
    assert not message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
