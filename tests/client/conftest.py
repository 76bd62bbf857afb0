"""A scripted server, clients of it, and a clean slate for each test of the client."""

from collections.abc import AsyncIterator, Iterator

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
