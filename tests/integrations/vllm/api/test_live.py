"""GET /v1/agentkv/live: who is asked how often, who sees what, and who is dropped."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.types import Message
from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

from agentkv.integrations.vllm.api import live
from agentkv.integrations.vllm.api.engine_client import EngineLink
from agentkv.integrations.vllm.api.live import MAX_VIEWERS_OF_CLIENT
from agentkv.integrations.vllm.api.routes import add_routes
from agentkv.integrations.vllm.clients import ADMIN_KEY_VARIABLE, Clients
from tests.integrations.vllm.api.fake_engine import Answers, FakeEngineClient, FakeEngineCore

pytestmark = pytest.mark.asyncio

INTERVAL_S = 0.02


def engine(number: int = 0, *names: str) -> Answers:
    """An engine that names these jobs, and says whose view it gives."""

    def answer(viewer: str | None, seen_s: Mapping[str, float]) -> dict[str, Any]:
        now = {"engine": number, "at_s": 7.0, "pool": {"blocks": 9}, "events": []}
        return {**now, "keys": [*names], "whose": viewer}

    def jobs(viewer: str | None, keys: Sequence[str]) -> list[Any]:
        return [{"job_id": key} for key in keys if key in names and key != "gone"]

    return {"live": answer, "jobs": jobs}


class Watcher:
    """A viewer's side of one stream, below HTTP: it reads when it wants to."""

    def __init__(self, app: Starlette, key: str = "", *, reads: bool = True) -> None:
        self.status = 0
        self.events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.goes = asyncio.Event()
        self._may_read = asyncio.Event()
        if reads:
            self._may_read.set()
        headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
        path = "/v1/agentkv/live"
        scope = {
            **{"type": "http", "method": "GET", "path": path, "raw_path": path.encode()},
            **{"headers": headers, "query_string": b"", "client": ("127.0.0.1", 1), "app": app},
        }
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        await self.goes.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        await self._may_read.wait()
        name, _, data = message["body"].decode().partition("\n")
        if name:
            is_event = name.startswith("event: ")
            text = data.removeprefix("data: ") if is_event else name
            self.events.put_nowait((name.removeprefix("event: "), json.loads(text)))

    async def next(self) -> tuple[str, Any]:
        return await asyncio.wait_for(self.events.get(), 10.0)


@asynccontextmanager
async def server(
    *engines: dict[str, Any], core: Any = None, keys: Sequence[str] = ()
) -> AsyncIterator[tuple[Callable[..., Watcher], FakeEngineCore]]:
    """The routes before these engines, and a function that opens a stream; all are closed."""
    app = Starlette()
    core = core or FakeEngineCore(list(engines or (engine(),)))
    verifier = AuthenticationMiddleware(app, tokens=[*keys]) if keys else None
    add_routes(app, EngineLink(FakeEngineClient(core), timeout_s=5.0), Clients(verifier, {}))
    opened: list[Watcher] = []

    def watch(*args: Any, **options: Any) -> Watcher:
        opened.append(Watcher(app, *args, **options))
        return opened[-1]

    try:
        yield watch, core
    finally:
        for watcher in opened:
            watcher.goes.set()
        await asyncio.gather(*(watcher.task for watcher in opened))


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "INTERVAL_S", INTERVAL_S)
    monkeypatch.setattr(live, "SEND_TIMEOUT_S", 5 * INTERVAL_S)


async def test_a_snapshot_has_each_engine_and_its_jobs() -> None:
    """A message has the engines' snapshots, each with its jobs in the order in which they were
    named, and none that the engine has forgotten."""
    async with server(engine(0, "a", "b", "gone"), engine(1, "c", "b")) as (watch, _):
        name, snapshot = await watch().next()
    assert name == "snapshot"
    shown = [
        (each["engine"], each["pool"], [job["job_id"] for job in each["jobs"]])
        for each in snapshot["engines"]
    ]
    assert shown == [(0, {"blocks": 9}, ["a", "b"]), (1, {"blocks": 9}, ["b", "c"])]


async def test_nobody_looks_and_nothing_is_asked() -> None:
    """Before the first viewer and after the last has gone the engine is not asked; a viewer gets
    what happened since the snapshot before."""
    async with server() as (watch, core):
        assert core.asked == []
        viewer = watch()
        await viewer.next()
        await viewer.next()
        assert [values[1] for _, values in core.asked[:2]] == [{}, {"0": 7.0}]
        viewer.goes.set()
        await viewer.task
        num_asked = len(core.asked)
        await asyncio.sleep(10 * INTERVAL_S)
        assert len(core.asked) == num_asked


async def test_a_key_sees_its_own_jobs_and_the_admin_key_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each view is asked for by its client; that of the admin key is the one of all."""
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, "root")
    async with server(keys=["one", "two", "root"]) as (watch, _):
        ids = []
        for key in ("one", "two", "root"):
            _, snapshot = await watch(key).next()
            ids.append(snapshot["engines"][0]["whose"])
    assert ids[2] is None
    assert len(set(ids)) == 3


async def test_a_viewer_that_does_not_read_is_dropped_and_the_others_go_on() -> None:
    """A viewer that takes no message is let go, and what it did not take is not kept for it."""
    async with server() as (watch, _):
        reader, stuck = watch(), watch(reads=False)
        while not stuck.task.done():
            await reader.next()
        assert stuck.events.empty()
        assert (await reader.next())[0] == "snapshot"


async def test_too_many_streams_of_a_client_are_refused() -> None:
    """One stream more than a client may have gets a 429; when one is closed, it is served."""
    async with server() as (watch, _):
        viewers = [watch() for _ in range(MAX_VIEWERS_OF_CLIENT)]
        await asyncio.gather(*(viewer.next() for viewer in viewers))
        refused = watch()
        await refused.task
        assert refused.status == 429
        viewers[0].goes.set()
        await viewers[0].task
        assert (await watch().next())[0] == "snapshot"


async def test_the_stream_ends_when_the_engine_is_gone() -> None:
    """Viewers get the reason why there is no more, and their streams end."""

    class Dead(FakeEngineCore):
        async def call_utility_all_async(self, method: str, *args: Any) -> list[Any]:
            if len(self.asked) == 2:
                raise RuntimeError("EngineDead")
            return await super().call_utility_all_async(method, *args)

    async with server(core=Dead([engine()])) as (watch, _):
        viewer = watch()
        while (received := await viewer.next())[0] == "snapshot":
            pass
        assert received[0] == "gone"
        assert "EngineDead" in received[1]["problem"]
        await viewer.task
