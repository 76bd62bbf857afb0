"""Tags the requests of lm15, DSPy's own HTTP library, as those of httpx are tagged.

Source: dspy 3.4.1, dspy/_vendor/lm15/transports: the methods behind every way to send a request.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from types import SimpleNamespace
from typing import Any

import agentkv
from agentkv.client.patches import Method, Patch
from agentkv.client.tagger import TaggedRequest, turn_of


def a_request(original: Method, patch: Patch) -> Method:
    """Make each request to a model a turn of the job that is current."""

    def prepare(request: Any) -> tuple[TaggedRequest | None, Any]:
        import httpx

        job = agentkv.current_job() if patch.is_active else None
        twin = httpx.Request(
            request.method, request.url, headers=request.headers, content=request.body
        )
        return turn_of(job, None, twin), twin

    def with_tags(request: Any, twin: Any) -> Any:
        own = {name.lower() for name, _ in request.headers}
        added = [pair for pair in twin.headers.items() if pair[0].startswith("x-")]
        headers = [*request.headers, *(pair for pair in added if pair[0] not in own)]
        return dataclasses.replace(request, headers=headers)

    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def send_async(self: Any, request: Any) -> Any:
            call, twin = prepare(request)
            if call is None:
                return await original(self, request)
            if call.needs_plugin:
                await call.route().require_plugin_async()
            with call:
                response = await original(self, with_tags(request, twin))
                call.response = _shown(response)
            return response

        return send_async

    @functools.wraps(original)
    def send(self: Any, request: Any) -> Any:
        call, twin = prepare(request)
        if call is None:
            return original(self, request)
        if call.needs_plugin:
            call.route().require_plugin()
        with call:
            response = original(self, with_tags(request, twin))
            call.response = _shown(response)
        return response

    return send


def _shown(response: Any) -> Any:
    """A response as the tagger reads one of httpx, which lives as long as lm15's own."""
    response.agentkv = SimpleNamespace(
        status_code=response.status,
        is_success=200 <= response.status < 300,
        is_closed=False,
        stream=SimpleNamespace(close=lambda: None),
    )
    return response.agentkv
