"""The cost of client, middleware and parser: a call, `import agentkv`, a request body, a reply.

Calls go over real HTTP to a scripted server on 127.0.0.1; imports run in fresh interpreters.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import openai
from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import agentkv
from agentkv.integrations.vllm.api.middleware import AgentKVMiddleware
from tests.scripted_server import ScriptedServer
from tests.tool_calls.adversarial_replies import adversarial_replies

from .rows import Row, difference_row, samples_row, side_by_side, timed

NUM_BLOCKS, CALLS_PER_BLOCK = 25, 20
NUM_CALLS, NUM_IMPORTS, NUM_BODIES = 500, 15, 2000
TARGET_CALL_MS, TARGET_REQUEST_MS, TARGET_IMPORT_MS, TARGET_BODY_MS = 0.3, 0.1, 100.0, 0.1
TARGET_REPLY_MS, TARGET_ADVERSARIAL_MS = 0.2, 50.0
HEAVY_MODULES = ("openai", "torch", "vllm")
MESSAGES = [{"role": "user", "content": "List the files. " * 100}]
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 9_900}]}).encode()


def measure_calls() -> Iterator[Row]:
    """Time calls in `session(client)` and in `session()`, each against the bare client."""
    with (
        ScriptedServer(["ok"]) as server,
        openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client,
        httpx.Client(base_url=server.base_url) as http_client,
    ):
        for name, in_session, used, target_ms in (
            ("a call in session(client)", _in_own_session, client, TARGET_CALL_MS),
            ("a call in session()", _in_any_session, client, TARGET_CALL_MS),
            ("a request of httpx in session()", _in_any_session, http_client, TARGET_REQUEST_MS),
        ):
            blocks = side_by_side(partial(_calls, used), partial(in_session, used), NUM_BLOCKS)
            bare_s, ours_s = ([s for _, times_s in side for s in times_s] for side in blocks)
            yield difference_row(f"client: {name}", bare_s, ours_s, target_ms=target_ms)
        are_tagged = [bool(turn.tags) for turn in server.turns]
        assert sum(are_tagged) * 2 == len(are_tagged), "half of the calls must carry tags"


def _calls(client: Any) -> list[float]:
    return [timed(partial(_call, client))[0] for _ in range(CALLS_PER_BLOCK)]


def _call(client: Any) -> None:
    request = {"model": "scripted", "messages": MESSAGES, "max_tokens": 16}
    if isinstance(client, httpx.Client):
        client.post("/chat/completions", json=request)
    else:
        client.chat.completions.create(**request)


def _in_own_session(client: openai.OpenAI) -> list[float]:
    with agentkv.session(client) as job:
        return _calls(job.client)


def _in_any_session(client: Any) -> list[float]:
    try:
        with agentkv.session():
            return _calls(client)
    finally:
        agentkv.uninstrument()


def measure_import() -> Iterator[Row]:
    """Time `import agentkv` in fresh interpreters; AssertionError if it imports a heavy module."""
    ours_ms, dependencies_ms = [], []
    for _ in range(NUM_IMPORTS):
        dependencies_ms.append(_import_ms("httpx, pydantic, tenacity")[0])
        elapsed_ms, heavy = _import_ms("agentkv")
        ours_ms.append(elapsed_ms)
        assert not heavy, f"import agentkv imports {heavy}"
    detail = f"its dependencies alone: {np.median(dependencies_ms):.0f} ms"
    yield samples_row("client: import agentkv", ours_ms, "ms", TARGET_IMPORT_MS, detail)


def _import_ms(names: str) -> tuple[float, list[str]]:
    code = (
        "import time; started_s = time.perf_counter()\n"
        f"import {names}\n"
        "elapsed_s = time.perf_counter() - started_s\n"
        "import json, sys\n"
        f"print(json.dumps([elapsed_s * 1e3, sorted({set(HEAVY_MODULES)!r} & set(sys.modules))]))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    elapsed_ms, heavy = json.loads(done.stdout)
    return elapsed_ms, heavy


def measure_middleware() -> Iterator[Row]:
    """Time a request of 10 kB without tags through the middleware, against the bare application."""
    app = Starlette()
    app.state.vllm_config = SimpleNamespace(additional_config={"agentkv": {"policy": "continuum"}})
    app.state.engine_client = SimpleNamespace(
        engine_core=SimpleNamespace(add_request_async=_add_request), shutdown=lambda: None
    )
    middleware = AgentKVMiddleware(_read_body)
    with asyncio.Runner() as runner:
        bare, ours = side_by_side(
            lambda: runner.run(_request(_read_body, app)),
            lambda: runner.run(_request(middleware, app)),
            NUM_BODIES,
        )
    name = f"middleware: {len(BODY) / 1000:.0f} kB without our fields"
    times_s = ([elapsed_s for elapsed_s, _ in side] for side in (bare, ours))
    yield difference_row(name, *times_s, target_ms=TARGET_BODY_MS)


async def _request(app: ASGIApp, state: Starlette) -> None:
    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"user-agent", b"agent/1.0")],
        "app": state,
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: Message) -> None:
        pass

    await app(scope, receive, send)


async def _add_request(request: object) -> None:
    """Stand where vLLM sends a request to an engine; no request comes so far here."""


async def _read_body(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that reads the body and answers nothing."""
    assert (await receive())["body"] == BODY
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def measure_parser() -> Iterator[Row]:
    """Time `parse_tool_calls` on a reply of 4 kB with two calls, and on the worst of 200 kB."""
    call = '<tool_call>\n{"name": "bash", "arguments": {"command": "pytest"}}\n</tool_call>'
    reply = f"<think>\n{'I look at the parser first. ' * 125}\n</think>\nNow:\n{call}\n{call}"
    assert len(agentkv.parse_tool_calls(reply)) == 2
    times_ms = [timed(partial(agentkv.parse_tool_calls, reply))[0] * 1e3 for _ in range(NUM_CALLS)]
    yield samples_row("parser: a reply of 4 kB", times_ms, "ms", TARGET_REPLY_MS)
    slowest_s = max(min(_processor_s(text) for _ in range(3)) for _, text in adversarial_replies())
    name = "parser: the slowest adversarial reply of 200 kB"
    yield Row(name, slowest_s * 1e3, "ms", 0.0, 0.0, 1, TARGET_ADVERSARIAL_MS)


def _processor_s(text: str) -> float:
    started_s = time.process_time()
    agentkv.parse_tool_calls(text)
    return time.process_time() - started_s
