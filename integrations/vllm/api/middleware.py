"""Brings the tags of a request to the engine, as ASGI middleware.

vLLM instantiates it through its own `--middleware` option. It reads the tags of a request and folds
them into `vllm_xargs`, the one channel from an HTTP body to vLLM's scheduler; a request without
tags keeps its bytes. Only who evidently speaks to agentkv gets a 400 for a wrong one. Whose request
it is goes to the engine by itself. At start-up it adds the routes under /v1/agentkv. Under other
policies it forwards every call, and knows whose it is only where the front end asks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from vllm.logger import init_logger

from agentkv.errors import TagError
from agentkv.protocol import (
    OUR_HEADERS,
    TAG_FIELDS,
    WIRE_FIELD,
    WIRE_VERSION,
    Tags,
    parse_header_tags,
    parse_tags,
    read_tags,
)
from agentkv.protocol.foreign import BODY_KEYS, CONTEXT_FIELD, READ_HEADERS, add_foreign

from ..clients import Clients, find_token_verifier
from ..introduction import introduction
from ..server_policy import front_end_mib, settings_of
from .engine_client import EngineLink, end_streams_with, name_clients, served_client
from .live import page_files
from .routes import PREFIX, add_routes, anthropic_error, openai_error

logger = init_logger(__name__)
greeter = init_logger("vllm.agentkv")  # INFO of loggers outside vLLM's own is not printed

_ANTHROPIC_PATH = "/v1/messages"
_OPEN_PATH = "/invocations"
"""SageMaker's path for all kinds of requests, which vLLM serves without a key."""
_TOKENS_PATH = "/inference/v1/generate"
"""Tokens in, tokens out, as trainers use it: its body has vLLM's own sampling parameters."""
_TAGGED_PATHS = frozenset(
    (
        *("/v1/chat/completions", "/v1/completions", "/v1/responses"),
        *(_ANTHROPIC_PATH, _TOKENS_PATH, _OPEN_PATH),
    )
)
_HEADER_NAMES = frozenset(name.encode() for name in READ_HEADERS)

# vLLM takes this header into `request.session_id` itself, on all four routes, and the scheduler
# falls back to that: alone it needs no folding, and so no parsing of the body.
_NATIVE_HEADERS = frozenset({"x-session-id"})


class AgentKVMiddleware:
    """Reads requests in the event loop of an API server process, and never blocks it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._engine: EngineLink | None = None
        self._clients: Clients | None = None
        self._session_headers: tuple[str, ...] = ()
        self._is_set_up = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._is_set_up:
            self._set_up(scope)
        if self._clients is None or scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        page = None if self._engine is None else _page(scope)
        if page is not None:
            await page(scope, receive, send)
            return
        before = served_client.set(self._clients.of(scope))
        try:
            is_post = scope["type"] == "http" and scope["method"] == "POST"
            if self._engine is not None and is_post and _path(scope) in _TAGGED_PATHS:
                await self._fold_tags(self._engine, self._clients, scope, receive, send)
            else:
                await self._app(scope, receive, send)
        finally:
            served_client.reset(before)

    def _set_up(self, scope: Scope) -> None:
        """Connect to the engine, on the first call: vLLM's lifespan start, with `app.state`
        complete.
        """
        self._is_set_up = True
        app = scope["app"]
        vllm_config = getattr(app.state, "vllm_config", None)
        settings = settings_of(vllm_config)
        engine_client = getattr(app.state, "engine_client", None)
        if settings is not None and engine_client is not None:
            self._engine = EngineLink(engine_client)
            name_clients(engine_client, own_caches=bool(settings.get("client_caches")))
            end_streams_with(engine_client)
            self._clients = Clients(find_token_verifier(app), settings)
            add_routes(app, self._engine, self._clients)
            has_key = self._clients.verifier is not None
            args = getattr(app.state, "args", None)
            for line in introduction(args, vllm_config, settings, has_key=has_key):
                greeter.info(line)
            self._session_headers = tuple(
                name.lower() for name in settings.get("session_headers", ())
            )
        elif front_end_mib(vllm_config):
            self._clients = Clients(find_token_verifier(app), {})

    async def _fold_tags(
        self, engine: EngineLink, clients: Clients, scope: Scope, receive: Receive, send: Send
    ) -> None:
        # User middleware runs before vLLM's key check, which answers 401 without reading the body.
        verifier = None if _path(scope) == _OPEN_PATH else clients.verifier
        if verifier is not None and not verifier.verify_token(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        try:
            body = await Request(scope, receive).body()
        except ClientDisconnect:
            return
        passed_over: list[TagError] = []
        try:
            folded = _fold_request(scope, body, passed_over, self._session_headers)
        except TagError as error:
            engine.count_bad_tag()
            answer = openai_error(400, str(error), field=error.field)
            if _path(scope) == _ANTHROPIC_PATH:
                answer = anthropic_error(str(error))
            await answer(scope, receive, send)
            return
        if passed_over:
            engine.count_bad_tag()
            names = ", ".join(sorted({error.field for error in passed_over}))
            logger.warning_once(
                "agentkv: passed over fields of strangers with our names: %s", names
            )
        if folded is not body:
            scope = with_content_length(scope, len(folded))
        await self._app(scope, behind(folded, receive), send)


def _page(scope: Scope) -> Response | None:
    """Return a file of the live page, which is served before vLLM asks for a key."""
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
        return None
    path = _path(scope)
    return page_files().get(path.removeprefix(PREFIX)) if path.startswith(PREFIX) else None


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _fold_request(
    scope: Scope, body: bytes, passed_over: list[TagError], session_headers: Sequence[str]
) -> bytes:
    headers = {
        name.decode(): value.decode("latin-1")
        for name, value in scope["headers"]
        if value and (name in _HEADER_NAMES or name.startswith(OUR_HEADERS.encode()))
    }
    given = Headers(scope=scope)
    named = next((given[name] for name in session_headers if given.get(name)), None)
    if named is not None:
        headers["x-session-id"] = named
    parse_header_tags(headers)  # also where the body is not read
    is_native = named is None and not headers.keys() - _NATIVE_HEADERS
    if is_native and (_path(scope) == _TOKENS_PATH or not may_hold_tags(body)):
        return body
    folds = fold_into_sampling if _path(scope) == _TOKENS_PATH else fold
    try:
        return folds(body, headers, passed_over)
    except RecursionError:  # of what was parsed just so, deeper than it can be written
        return body


_XARGS = "vllm_xargs"

# All keys that we read, in quotes: a key quoted inside a prompt ends in `\"` and does not match.
_KEYS = re.compile(b'"(?:%s)"' % "|".join(map(re.escape, {*TAG_FIELDS, *BODY_KEYS})).encode())


def may_hold_tags(body: bytes) -> bool:
    """Return True if the key of a tag occurs in the body; a few microseconds for 10 kB."""
    return _KEYS.search(body) is not None


def fold(body: bytes, headers: Mapping[str, str], passed_over: list[TagError]) -> bytes:
    """Return the body with its tags and those of the headers under `vllm_xargs`.

    A tag given twice is taken from the top level first, then from a nested `extra_body`, then from
    `vllm_xargs`, then from our headers, then from what other software sends (`add_foreign`). The
    rest of the body stays byte for byte the same; a body that vLLM will reject (no JSON object,
    `vllm_xargs` of a wrong type) is returned unchanged. Takes about 2 ms per MB of body.

    Raises TagError for the first wrong tag of a caller who knows agentkv; those of others are added
    to `passed_over`.
    """
    request = _parse_object(body)
    given = None if request is None else request.get(_XARGS)
    xargs = {} if given is None else given
    if request is None or not isinstance(xargs, dict):
        return body
    nested = request.get("extra_body")
    places = (request, nested if isinstance(nested, dict) else {}, xargs)
    folded = _as_xargs(_collect(places, headers, passed_over))
    if isinstance(context := xargs.get(CONTEXT_FIELD), dict):  # vLLM takes no objects there
        folded[CONTEXT_FIELD] = json.dumps(context)
    if folded.items() <= xargs.items():
        return body
    return _with_member(body, request, _XARGS, {**xargs, **folded})


def fold_into_sampling(
    body: bytes, headers: Mapping[str, str], passed_over: list[TagError]
) -> bytes:
    """Return the body with the tags of the headers under `sampling_params.extra_args`, whose own
    come first; TagError and `passed_over` as of `fold`."""
    request = _parse_object(body)
    params = {} if request is None else request.get("sampling_params")
    own = (params.get("extra_args") or {}) if isinstance(params, dict) else None
    if request is None or not isinstance(params, dict) or not isinstance(own, dict):
        return body
    extra_args = {**own, **_as_xargs(_collect(({}, {}, own), headers, passed_over))}
    return _with_member(body, request, "sampling_params", {**params, "extra_args": extra_args})


def _parse_object(body: bytes) -> dict[str, Any] | None:
    try:
        request = json.loads(body.decode("utf-8", "surrogatepass"))  # as vLLM decodes it
    except (ValueError, RecursionError):
        return None
    return request if isinstance(request, dict) else None


def _collect(
    places: Sequence[Mapping[str, Any]], headers: Mapping[str, str], passed_over: list[TagError]
) -> Tags:
    """Return the tags of a request, by the places of its body from the top level to the xargs."""
    is_ours = any(name.startswith(OUR_HEADERS) for name in headers) or any(
        place.get(WIRE_FIELD) == WIRE_VERSION for place in places
    )
    found = parse_header_tags(headers).as_fields()
    for place in reversed(places):
        takes_numbers = place is places[-1]
        tags = (
            parse_tags(place, flags_as_numbers=takes_numbers)
            if is_ours
            else read_tags(place, passed_over, flags_as_numbers=takes_numbers)
        )
        found |= tags.as_fields()
    return add_foreign(Tags(**found), places, headers)


def _as_xargs(tags: Tags) -> dict[str, str | int | float]:
    """Return the tags, with flags as the numbers that vLLM makes of them."""
    fields = tags.as_fields().items()
    return {name: int(tag) if isinstance(tag, bool) else tag for name, tag in fields}


def _with_member(body: bytes, request: dict[str, Any], name: str, value: dict[str, Any]) -> bytes:
    """Append the key to the object's text; of two equal keys JSON parsers take the last."""
    closing = body.rindex(b"}")
    separator = b"," if request else b""
    member = b'"%s":%s' % (name.encode(), json.dumps(value).encode())
    return b"".join((body[:closing], separator, member, body[closing:]))


def behind(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields this body first, then what comes on the connection.

    vLLM calls `receive` again after the body to learn of a disconnect and cancel the request.
    """
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_body_first() -> Message:
        return pending.pop() if pending else await receive()

    return receive_body_first


def with_content_length(scope: Scope, num_bytes: int) -> Scope:
    """Return the scope with a corrected content-length header, if it has one (chunked bodies do
    not).
    """
    length = str(num_bytes).encode()
    headers = [
        (name, length if name == b"content-length" else value) for name, value in scope["headers"]
    ]
    return {**scope, "headers": headers}
