"""Shows the server while it runs: the stream `GET /v1/agentkv/live`, and the page that reads it.

All who watch share one call to the engine a second; when nobody does, none is made. A viewer gets
the newest snapshot or none: one that cannot keep up is dropped, and nothing is kept for it.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from agentkv.errors import AgentKVServerError

from ..watch.job_view import sentence
from .engine_client import JOBS_AT_ONCE, EngineLink

INTERVAL_S = 1.0
MAX_VIEWERS = 32
"""Streams that an API server process has open at once."""
MAX_VIEWERS_OF_CLIENT = 8
MAX_MISSED = 3
"""Snapshots that a viewer may miss in a row because it has not read the one before."""


class TooManyViewersError(AgentKVServerError):
    """Raised when no further stream may be opened."""


@dataclass(eq=False)
class Viewer:
    """One open stream: the message that it has yet to send, if any."""

    owner: str
    """The client that watches."""
    client: str | None
    """Whose jobs it sees; None: those of all."""
    is_new: bool = True
    """It has yet to be part of a call, and then gets the events of two minutes."""
    message: bytes | None = None
    is_last: bool = False
    num_missed: int = 0
    has_news: asyncio.Event = field(default_factory=asyncio.Event)
    sender: asyncio.Task[None] | None = None

    def offer(self, message: bytes) -> None:
        """Replace a message that has not been taken yet."""
        self.num_missed = self.num_missed + 1 if self.message is not None else 0
        self.message = message
        self.has_news.set()
        if self.num_missed >= MAX_MISSED and self.sender is not None:
            self.sender.cancel()


class LiveHub:
    """The viewers of one API server process, and the loop that serves them while there are any."""

    def __init__(self, engine: EngineLink, *, interval_s: float = INTERVAL_S) -> None:
        self._engine = engine
        self._interval_s = interval_s
        self._viewers: set[Viewer] = set()
        self._seen_s: dict[str | None, dict[str, float]] = {}
        """By client, the time up to which it has the events of each engine."""
        self._loop: asyncio.Task[None] | None = None

    def stream(self, owner: str, *, sees_all: bool) -> Response:
        """Open a stream for a client, of its own jobs or of all. Raises TooManyViewersError."""
        viewer = Viewer(owner, None if sees_all else owner)
        num_own = sum(other.owner == owner for other in self._viewers)
        if len(self._viewers) >= MAX_VIEWERS or num_own >= MAX_VIEWERS_OF_CLIENT:
            raise TooManyViewersError(
                f"{num_own} streams of this client and {len(self._viewers)} in all are open; at "
                f"most {MAX_VIEWERS_OF_CLIENT} and {MAX_VIEWERS} may be: close one"
            )
        return LiveStream(self, viewer)

    def join(self, viewer: Viewer) -> None:
        """Serve a viewer from the next call on. Its client gets the events of two minutes again."""
        self._viewers.add(viewer)
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._serve())

    def leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)

    async def _serve(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._viewers:
            started_s = clock()
            # one that joins while the engine answers would miss what happened before
            viewers = list(self._viewers)
            clients = list({viewer.client: None for viewer in viewers})
            joined = {viewer.client for viewer in viewers if viewer.is_new}
            views = [
                (client, {} if client in joined else self._seen_s.get(client, {}))
                for client in clients
            ]
            try:
                answers = await self._engine.call("live", views)
                await self._add_rows(clients, answers)
            except AgentKVServerError as error:
                self._end(str(error))
                return
            self._seen_s.clear()
            for index, client in enumerate(clients):
                message = self._message(client, index, answers)
                for viewer in viewers:
                    if viewer.client == client:
                        viewer.is_new = False
                        viewer.offer(message)
            await asyncio.sleep(max(0.0, self._interval_s - (clock() - started_s)))
        self._seen_s.clear()

    async def _add_rows(self, clients: list[str | None], answers: list[dict[str, Any]]) -> None:
        """Have each engine describe the jobs that it has named, a page at a time."""
        views = [
            (client, view)
            for answer in answers
            for client, view in zip(clients, answer["views"], strict=True)
        ]
        asked = [*dict.fromkeys((client, key) for client, view in views for key in view["keys"])]
        found: list[list[Any]] = [[] for _ in answers]
        for start in range(0, len(asked), JOBS_AT_ONCE):
            page = asked[start : start + JOBS_AT_ONCE]
            for rows, more in zip(found, await self._engine.call("watched", page), strict=True):
                rows += more
        for rows, answer in zip(found, answers, strict=True):
            known = dict(zip(asked, rows, strict=True))
            for client, view in zip(clients, answer["views"], strict=True):
                described = (known[client, key] for key in view.pop("keys"))
                view["jobs"] = [job for job in described if job is not None]

    def _message(self, client: str | None, index: int, answers: list[dict[str, Any]]) -> bytes:
        """Encode what one client sees of each engine."""
        engines = []
        seen_s = self._seen_s[client] = {}
        for answer in answers:
            seen_s[str(answer["engine"])] = answer["at_s"]
            shared = {name: value for name, value in answer.items() if name != "views"}
            view = answer["views"][index]
            told = [{"text": sentence(each), **each} for each in view.get("events", ())]
            engines.append({**shared, **view, "events": told})
        return event("snapshot", {"interval_s": self._interval_s, "engines": engines})

    def _end(self, problem: str) -> None:
        """Tell all viewers why there is no more, and let them go."""
        for viewer in self._viewers:
            viewer.is_last = True
            viewer.offer(event("gone", {"problem": problem}))


def event(name: str, data: Mapping[str, Any]) -> bytes:
    """Encode a server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))


class LiveStream(Response):
    """Sends a viewer's messages until it disconnects, is dropped, or the engine is gone."""

    media_type = "text/event-stream"

    def __init__(self, hub: LiveHub, viewer: Viewer) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._hub = hub
        self._viewer = viewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = self._viewer.sender = asyncio.create_task(self._send(send))
        disconnect = asyncio.create_task(_disconnect(receive))
        self._hub.join(self._viewer)
        try:
            await asyncio.wait({sender, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._hub.leave(self._viewer)
            for task in (sender, disconnect):
                task.cancel()
            await asyncio.gather(sender, disconnect, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        headers = self.raw_headers
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        viewer = self._viewer
        while not viewer.is_last or viewer.message is not None:
            await viewer.has_news.wait()
            viewer.has_news.clear()
            message, viewer.message = viewer.message, None
            await send({"type": "http.response.body", "body": message, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


PAGE_TYPES: Mapping[str, str] = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    **dict.fromkeys(
        ("page.js", "jobs.js", "lanes.js", "curves.js", "stream.js", "words.js"), "text/javascript"
    ),
    "icon.svg": "image/svg+xml",
}
PAGE_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@functools.cache
def page_files() -> Mapping[str, Response]:
    """The files of the page, by their paths below /v1/agentkv/.

    They are the same for everybody and hold no data, so they are served without a key; what the
    page shows it asks for with the key that it was given.
    """
    folder, headers = importlib.resources.files("agentkv.integrations.vllm") / "ui", PAGE_HEADERS
    files: dict[str, Response] = {
        f"ui/{name}": Response((folder / name).read_bytes(), headers=headers, media_type=media_type)
        for name, media_type in PAGE_TYPES.items()
    }
    files["ui"], files["ui/"] = files["ui/index.html"], RedirectResponse("../ui", headers=headers)
    return files


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
