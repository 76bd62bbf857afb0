"""An engine behind the API server that answers from a table and remembers what it was asked."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx
from fastapi import FastAPI, Request
from starlette.applications import Starlette
from vllm import SamplingParams
from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware
from vllm.v1.engine import EngineCoreRequest

from agentkv.integrations.vllm.api import engine_side
from agentkv.integrations.vllm.api.engine_client import EngineLink
from agentkv.integrations.vllm.api.middleware import AgentKVMiddleware
from agentkv.integrations.vllm.api.routes import add_routes
from agentkv.integrations.vllm.clients import Clients
from tests.integrations.vllm.harness import Engine

Answers = dict[str, Callable[..., Any]]

TAGGED_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
UNTAGGED_PATHS = ("/invocations", "/v1/messages/count_tokens", "/inference/v1/generate")


@dataclass
class FakeEngineCore:
    """One or several engines, each with its own table of answers."""

    engines: list[Answers]
    asked: list[tuple[str, list[Any]]] = field(default_factory=list)
    was_asked: asyncio.Event = field(default_factory=asyncio.Event)
    added: list[EngineCoreRequest] = field(default_factory=list)

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        self.added.append(request)

    async def call_utility_all_async(self, method: str, *args: Any) -> list[Any]:
        assert method == "agentkv_call"
        operation, values = args
        self.asked.append((operation, values))
        self.was_asked.set()
        return [engine[operation](*values) for engine in self.engines]

    async def call_utility_async(self, method: str, *args: Any) -> Any:
        return (await self.call_utility_all_async(method, *args))[0]


class SteppedCore(FakeEngineCore):
    """A real engine behind the routes."""

    def __init__(self, engine: Engine) -> None:
        super().__init__([])
        self._scheduler = engine.scheduler

    async def call_utility_all_async(self, method: str, *args: Any) -> list[Any]:
        return [engine_side.call(self._scheduler, *args)]


def client_of(key: str) -> str:
    """The name by which an engine knows the client with this key."""
    verifier: Any = type("AnyKey", (), {"verify_token": lambda self, headers: True})()
    scope = {"type": "http", "headers": [(b"authorization", f"Bearer {key}".encode())]}
    return Clients(verifier, {}).of(scope)


@dataclass
class FakeEngineClient:
    """Where the API server finds the engine."""

    engine_core: Any
    output_processor: Any = None

    def shutdown(self, timeout: float | None = None) -> None:
        """Stop the engine."""


def make_app(
    *engines: Answers,
    policy: str | None = "continuum",
    core: Any = None,
    root_path: str = "",
    settings: dict[str, Any] | None = None,
) -> FastAPI:
    """An application laid out as vLLM's, whose routes echo what they were given.

    They also add a request to the engine, in a task of its own as for one of several samples.
    """
    app = FastAPI(root_path=root_path)
    given = {"agentkv": {"policy": policy, **(settings or {})}} if policy else {}
    app.state.vllm_config = SimpleNamespace(additional_config=given)
    app.state.engine_client = FakeEngineClient(core or FakeEngineCore(list(engines)))
    app.add_middleware(AgentKVMiddleware)

    async def echo(request: Request) -> Any:
        body = await request.body()
        headers = dict(request.headers)
        await asyncio.create_task(add_request(app.state.engine_client.engine_core, body))
        return {
            "length": headers.get("content-length"),
            "headers": headers,
            "text": body.decode("latin-1"),
        }

    for path in (*TAGGED_PATHS, *UNTAGGED_PATHS):
        app.add_api_route(path, echo, methods=["POST"])
    return app


async def add_request(core: Any, body: bytes) -> None:
    """Add a request as vLLM does, with the body's `vllm_xargs` among its sampling parameters."""
    try:
        xargs = json.loads(body.decode(json.detect_encoding(body), "surrogatepass"))["vllm_xargs"]
    except (ValueError, KeyError, TypeError, RecursionError):
        xargs = None
    sampling = SamplingParams(extra_args=xargs)
    await core.add_request_async(
        EngineCoreRequest("r", [1], None, sampling, None, 0.0, None, None, None)
    )


class Server:
    """An application with nothing but the agentkv routes, and the engines behind it."""

    def __init__(
        self,
        *engines: dict[str, Any],
        core: Any = None,
        timeout_s: float = 5.0,
        keys: Sequence[str] = (),
    ) -> None:
        self.core = core or FakeEngineCore(list(engines))
        self.app = Starlette()
        verifier = AuthenticationMiddleware(self.app, tokens=[*keys]) if keys else None
        link = EngineLink(FakeEngineClient(self.core), timeout_s=timeout_s)
        add_routes(self.app, link, Clients(verifier, {}))

    async def __call__(
        self, method: str, path: str, body: object = None, *, key: str = "", **params: str
    ) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            if not path.startswith("/finish_session"):
                path = "/v1/agentkv" + path
            return await client.request(
                method, path, content=content, headers=headers, params=params or None
            )
