"""Shows the server while it runs: the stream `GET /v1/agentkv/live`, and the page that reads it.

Each stream asks the engine once a second while its viewer reads; when nobody watches, nothing is
asked, and nothing is kept for a viewer that does not read.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.resources
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from agentkv.errors import AgentKVServerError

from ..watch.job_view import sentence
from .engine_client import JOBS_AT_ONCE, EngineLink

INTERVAL_S = 1.0
MAX_VIEWERS = 16
"""Streams that an API server process has open at once."""
MAX_VIEWERS_OF_CLIENT = 4
SEND_TIMEOUT_S = 3.0
"""A viewer that takes no message for this long is let go."""


class TooManyViewersError(AgentKVServerError):
    """Raised when no further stream may be opened."""


class LiveHub:
    """Opens the streams of one API server process, as many as it may."""

    def __init__(self, engine: EngineLink) -> None:
        self._engine = engine
        self.opened: Counter[str] = Counter()
        """Streams by client."""

    def stream(self, client: str, *, sees_all: bool) -> Response:
        """Open a stream for a client, of its own jobs or of all. Raises TooManyViewersError."""
        num_own, num_all = self.opened[client], self.opened.total()
        if num_all >= MAX_VIEWERS or num_own >= MAX_VIEWERS_OF_CLIENT:
            raise TooManyViewersError(
                f"{num_own} streams of this client and {num_all} in all are open; at most "
                f"{MAX_VIEWERS_OF_CLIENT} and {MAX_VIEWERS} may be: close one"
            )
        return LiveStream(self, client, None if sees_all else client)

    async def messages(self, client: str, viewer: str | None) -> AsyncGenerator[bytes, None]:
        """Yield a snapshot a second, and why there is none when the engine is gone."""
        seen_s: dict[str, float] = {}
        clock = asyncio.get_running_loop().time
        while True:
            started_s = clock()
            try:
                engines = await self._engine.read(client, "live", viewer, {**seen_s})
                await self._add_jobs(client, viewer, engines)
            except AgentKVServerError as error:
                yield event("gone", {"problem": str(error)})
                return
            for engine in engines:
                seen_s[str(engine["engine"])] = engine["at_s"]
                engine["events"] = [{"text": sentence(each), **each} for each in engine["events"]]
            yield event("snapshot", {"interval_s": INTERVAL_S, "engines": engines})
            await asyncio.sleep(max(0.0, INTERVAL_S - (clock() - started_s)))

    async def _add_jobs(
        self, client: str, viewer: str | None, engines: list[dict[str, Any]]
    ) -> None:
        """Have the engines describe the jobs that they have named, a page at a time."""
        keys = [*dict.fromkeys(key for engine in engines for key in engine.pop("keys"))]
        for engine in engines:
            engine["jobs"] = []
        for start in range(0, len(keys), JOBS_AT_ONCE):
            page = keys[start : start + JOBS_AT_ONCE]
            found = await self._engine.read(client, "jobs", viewer, page)
            for engine, jobs in zip(engines, found, strict=True):
                engine["jobs"] += jobs


def event(name: str, data: Mapping[str, Any]) -> bytes:
    """Encode a server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data))


class LiveStream(StreamingResponse):
    """Sends a viewer's messages until it disconnects or does not read, or the engine is gone."""

    media_type = "text/event-stream"

    def __init__(self, hub: LiveHub, client: str, viewer: str | None) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(hub.messages(client, viewer), headers=headers)
        self._opened = hub.opened
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send(message)

        self._opened[self._client] += 1
        try:
            with suppress(TimeoutError):
                await super().__call__(scope, receive, send_in_time)
        finally:
            self._opened -= Counter([self._client])


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
    """Return the files of the page, by their paths below /v1/agentkv/.

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
