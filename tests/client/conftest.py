"""A scripted server, clients of it, and a clean slate for each test of the client."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, OpenAI

import agentkv
from agentkv.client.server import forget_servers
from tests.scripted_apis import ScriptedServer


@pytest.fixture(autouse=True)
def clean_slate() -> Iterator[None]:
    """No server is known, nothing is instrumented, and no feedback is waiting."""
    forget_servers()
    yield
    agentkv.uninstrument()
    assert agentkv.flush(timeout_s=20)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A server with the plugin that answers "ok"."""
    with ScriptedServer() as server:
        yield server
        assert agentkv.flush(timeout_s=20)


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[OpenAI]:
    """A client of the server."""
    http_client = openai.DefaultHttpxClient(verify=False)  # loading certificates takes 30 ms
    with OpenAI(base_url=server.base_url, api_key="key", http_client=http_client) as client:
        yield client


@pytest_asyncio.fixture
async def async_client(server: ScriptedServer) -> AsyncIterator[AsyncOpenAI]:
    """An async client of the server."""
    http_client = openai.DefaultAsyncHttpxClient(verify=False)
    async with AsyncOpenAI(
        base_url=server.base_url, api_key="key", http_client=http_client
    ) as client:
        yield client


@pytest.fixture
def no_free_thread() -> Callable[[], AbstractContextManager[None]]:
    """Within it no thread can start, as on a machine that is out of them."""

    @contextmanager
    def within() -> Iterator[None]:
        before = threading.stack_size(1 << 46)  # more than the system has for a stack
        try:
            yield
        finally:
            threading.stack_size(before)

    return within
