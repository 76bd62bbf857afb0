"""An engine behind the API server that answers from a table and remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI, Request

from agentkv.integrations.vllm.api.middleware import AgentKVMiddleware

Answers = dict[str, Callable[..., Any]]

TAGGED_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


@dataclass
class FakeEngineCore:
    """One or several engines, each with its own table of answers."""

    engines: list[Answers]
    asked: list[tuple[str, list[Any]]] = field(default_factory=list)
    was_asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def call_utility_all_async(self, method: str, *args: Any) -> list[Any]:
        assert method == "agentkv_call"
        operation, values = args
        self.asked.append((operation, values))
        self.was_asked.set()
        return [engine[operation](*values) for engine in self.engines]

    async def call_utility_async(self, method: str, *args: Any) -> Any:
        return (await self.call_utility_all_async(method, *args))[0]


@dataclass
class FakeEngineClient:
    """Where the API server finds the engine."""

    engine_core: Any


def make_app(
    *engines: Answers, policy: str | None = "continuum", core: Any = None, root_path: str = ""
) -> FastAPI:
    """An application laid out as vLLM's, whose tagged routes echo what they were given."""
    app = FastAPI(root_path=root_path)
    settings = {"agentkv": {"policy": policy}} if policy else {}
    app.state.vllm_config = SimpleNamespace(additional_config=settings)
    app.state.engine_client = FakeEngineClient(core or FakeEngineCore(list(engines)))
    app.add_middleware(AgentKVMiddleware)

    async def echo(request: Request) -> Any:
        body = await request.body()
        headers = dict(request.headers)
        return {
            "length": headers.get("content-length"),
            "headers": headers,
            "text": body.decode("latin-1"),
        }

    for path in (*TAGGED_PATHS, "/invocations", "/v1/messages/count_tokens"):
        app.add_api_route(path, echo, methods=["POST"])
    return app
