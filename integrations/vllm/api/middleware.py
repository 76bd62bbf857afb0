"""The plugin's ASGI middleware: brings the tags of a request to the engine.

vLLM instantiates it through its own `--middleware` option. It reads the tags of a request, checks
them and folds them into `vllm_xargs`, the one channel from an HTTP body to vLLM's scheduler; a
request without tags keeps its bytes. Whose request it is goes to the engine by itself. At
start-up it adds the routes under /v1/agentkv. Under other policies it forwards every call.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentkv.errors import TagError
from agentkv.protocol import (
    READ_HEADERS,
    SESSION_HEADERS,
    SUB_AGENT_HEADER,
    TAG_FIELDS,
    Tags,
    parse_header_tags,
    parse_tags,
)

from ..clients import Clients, find_token_verifier
from ..engine.older_vllm import READS_SESSION_HEADER
from ..server_policy import settings_of
from .engine_client import EngineLink, name_clients, served_client
from .live import page_file
from .routes import PREFIX, add_routes, anthropic_error, openai_error

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
_SESSION_HEADER_NAMES = frozenset(name.encode() for name in (*SESSION_HEADERS, SUB_AGENT_HEADER))

# Claude Code and OpenCode send one of these with every request, also with those for a title, which
# run during the session's first turn and offer no tools.
_AGENTS_WITH_TITLES = frozenset((b"x-claude-code-session-id", b"x-session-affinity"))
_OFFERED_TOOL = re.compile(rb'"tools"\s*:\s*\[\s*\{')

# vLLM takes this header into `request.session_id` itself, on all four routes, and the scheduler
# falls back to that: alone it needs no folding, and so no parsing of the body.
_NATIVE_HEADERS = frozenset({"x-session-id"} if READS_SESSION_HEADER else ())


class AgentKVMiddleware:
    """One instance per API server process; runs in the event loop and never blocks it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._engine: EngineLink | None = None
        self._clients: Clients | None = None
        self._is_set_up = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._is_set_up:
            self._set_up(scope)
        if self._engine is None or self._clients is None or scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        page = _page(scope)
        if page is not None:
            await page(scope, receive, send)
            return
        before = served_client.set(self._clients.of(scope))
        try:
            is_post = scope["type"] == "http" and scope["method"] == "POST"
            if is_post and _path(scope) in _TAGGED_PATHS:
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
        settings = settings_of(getattr(app.state, "vllm_config", None))
        engine_client = getattr(app.state, "engine_client", None)
        if settings is not None and engine_client is not None:
            self._engine = EngineLink(engine_client)
            name_clients(engine_client)
            self._clients = Clients(find_token_verifier(app), settings)
            add_routes(app, self._engine, self._clients)

    async def _fold_tags(
        self, engine: EngineLink, clients: Clients, scope: Scope, receive: Receive, send: Send
    ) -> None:
        # User middleware runs before vLLM's key check, which answers 401 without reading the body.
        verifier = None if _path(scope) == _OPEN_PATH else clients.verifier
        if verifier is not None and not verifier.verify_token(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        body, messages = await read_body(receive)
        if body is None:
            await self._app(scope, replay(messages, receive), send)
            return
        try:
            scope = without_session_of_side_request(scope, body)
            folded = _fold_request(scope, body)
        except TagError as error:
            engine.count_bad_tag()
            answer = openai_error(400, str(error), field=error.field)
            if _path(scope) == _ANTHROPIC_PATH:
                answer = anthropic_error(str(error))
            await answer(scope, receive, send)
            return
        if folded is not body:
            scope = with_content_length(scope, len(folded))
            messages = [{"type": "http.request", "body": folded, "more_body": False}]
        await self._app(scope, replay(messages, receive), send)


def _page(scope: Scope) -> Response | None:
    """A file of the live page, which is served before vLLM asks for a key."""
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
        return None
    path = _path(scope)
    return page_file(path.removeprefix(PREFIX)) if path.startswith(PREFIX + "ui") else None


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def without_session_of_side_request(scope: Scope, body: bytes) -> Scope:
    """Return the scope without session headers if this is a side request of a coding agent.

    Such a request is no turn of the session: it shares none of its context, and would replace what
    the session's first turn leaves in the cache.
    """
    names = {name for name, _ in scope["headers"]}
    if not names & _AGENTS_WITH_TITLES or _OFFERED_TOOL.search(body):
        return scope
    kept = [header for header in scope["headers"] if header[0] not in _SESSION_HEADER_NAMES]
    return {**scope, "headers": kept}


def _fold_request(scope: Scope, body: bytes) -> bytes:
    text = body
    if (encoding := json.detect_encoding(body)) != "utf-8":  # vLLM takes UTF-16 and UTF-32, too
        with suppress(UnicodeError):
            text = body.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")
    headers = {
        name.decode(): value.decode("latin-1")
        for name, value in scope["headers"]
        if name in _HEADER_NAMES and value
    }
    header_tags = parse_header_tags(headers)
    if _path(scope) == _TOKENS_PATH:
        return fold_into_sampling(text, header_tags) if headers.keys() - _NATIVE_HEADERS else body
    if may_hold_tags(text) or headers.keys() - _NATIVE_HEADERS:
        return fold(text, header_tags)
    return body


_SESSION_FIELD = "session_id"
_CACHE_KEY_FIELD = "prompt_cache_key"
_XARGS = "vllm_xargs"

# The ends of all keys that we read, with the closing quote: `job_id"` also finds parent_job_id. A
# key quoted inside a prompt ends in `\"` and does not match.
_KEY_ENDS = tuple(
    f'{name}"'.encode()
    for name in (*TAG_FIELDS, _SESSION_FIELD, _CACHE_KEY_FIELD)
    if name != "parent_job_id"
)


def may_hold_tags(body: bytes) -> bool:
    """Return True if the key of a tag occurs in the body; a few microseconds for 10 kB."""
    return any(key_end in body for key_end in _KEY_ENDS)


def fold(body: bytes, header_tags: Tags) -> bytes:
    """Return the body with its tags and those of the headers under `vllm_xargs`.

    A tag given twice is taken from the top level first, then from a nested `extra_body`, then from
    `vllm_xargs`, then from the headers; without any job, ids of Codex and OpenHands in the body
    count. The rest of the body stays byte for byte the same; a body that vLLM will reject (no JSON
    object, `vllm_xargs` of a wrong type) is returned unchanged. Takes about 2 ms per MB of body.
    Raises TagError for the first wrong tag.
    """
    request = _parse_object(body)
    if request is None:
        return body
    xargs = request.get(_XARGS)
    if xargs is None:
        xargs = {}
    elif not isinstance(xargs, dict):
        return body
    folded = _as_xargs(_collect(request, xargs, header_tags))
    if folded.items() <= xargs.items():
        return body
    return _with_member(body, request, _XARGS, {**xargs, **folded})


def fold_into_sampling(body: bytes, header_tags: Tags) -> bytes:
    """Return the body with the tags of the headers under `sampling_params.extra_args`, whose own
    come first.

    Raises TagError for a wrong tag there.
    """
    request = _parse_object(body)
    params = request.get("sampling_params") if request is not None else None
    own = (params.get("extra_args") or {}) if isinstance(params, dict) else None
    if request is None or not isinstance(own, dict):
        return body
    extra_args = {**own, **_as_xargs(_collect({}, own, header_tags))}
    sampling = {**request["sampling_params"], "extra_args": extra_args}
    return _with_member(body, request, "sampling_params", sampling)


def _parse_object(body: bytes) -> dict[str, Any] | None:
    try:
        request = json.loads(body.decode("utf-8", "surrogatepass"))  # as vLLM decodes it
    except (ValueError, RecursionError):
        return None
    return request if isinstance(request, dict) else None


def _collect(
    request: dict[str, Any], xargs: dict[str, Any], header_tags: Tags
) -> dict[str, str | int | float | bool]:
    nested = request.get("extra_body")
    by_rising_precedence = (
        header_tags,
        _parse_place(xargs, flags_as_numbers=True),
        _parse_place(nested) if isinstance(nested, dict) else Tags(),
        _parse_place(request),
    )
    found = {
        name: value for tags in by_rising_precedence for name, value in tags.as_fields().items()
    }
    return found if "job_id" in found else {**_agent_tags(request).as_fields(), **found}


_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CODEX_METADATA = {
    "thread-id": "thread_id",
    "session-id": "session_id",
    "x-codex-parent-thread-id": "x-codex-parent-thread-id",
}


def _agent_tags(request: dict[str, Any]) -> Tags:
    """Read the ids that Codex and OpenHands send in the body.

    A proxy may have dropped Codex' headers. OpenHands has only `prompt_cache_key`, the same for its
    sub-agents; other callers give unrelated requests one key, so it is a job's id only as a UUID
    and with tools.
    """
    metadata, cache_key = request.get("client_metadata"), request.get(_CACHE_KEY_FIELD)
    if not isinstance(cache_key, str):
        return Tags()
    if isinstance(metadata, dict):
        ids = {header: metadata.get(field) for header, field in _CODEX_METADATA.items()}
        named = {name: text for name, text in ids.items() if isinstance(text, str)}
        return parse_header_tags(named)
    is_job_id = _UUID.fullmatch(cache_key) and request.get("tools")
    return Tags(job_id=cache_key) if is_job_id else Tags()


def _parse_place(place: Mapping[str, object], *, flags_as_numbers: bool = False) -> Tags:
    """Parse the tags in one place, with vLLM's own `session_id` as a fallback for `job_id`."""
    session_id = place.get(_SESSION_FIELD)
    if place.get("job_id") is not None or not isinstance(session_id, str) or not session_id:
        return parse_tags(place, flags_as_numbers=flags_as_numbers)
    try:
        return parse_tags({**place, "job_id": session_id}, flags_as_numbers=flags_as_numbers)
    except TagError as error:
        if error.field != "job_id":
            raise
        raise TagError(_SESSION_FIELD, session_id, error.allowed) from None


def _as_xargs(tags: dict[str, str | int | float | bool]) -> dict[str, str | int | float]:
    known = {name: tags[name] for name in TAG_FIELDS if name in tags}
    return {name: int(tag) if isinstance(tag, bool) else tag for name, tag in known.items()}


def _with_member(body: bytes, request: dict[str, Any], name: str, value: dict[str, Any]) -> bytes:
    """Append the key to the object's text; of two equal keys JSON parsers take the last."""
    closing = body.rindex(b"}")
    separator = b"," if request else b""
    member = b'"%s":%s' % (name.encode(), json.dumps(value).encode())
    return b"".join((body[:closing], separator, member, body[closing:]))


async def read_body(receive: Receive) -> tuple[bytes | None, list[Message]]:
    """Return the whole body and its ASGI messages; the body is None if the client disconnected."""
    messages: list[Message] = []
    while True:
        message = await receive()
        messages.append(message)
        if message["type"] != "http.request":
            return None, messages
        if not message.get("more_body", False):
            return b"".join(part.get("body", b"") for part in messages), messages


def replay(messages: Iterable[Message], receive: Receive) -> Receive:
    """Return a `receive` that yields these messages first, then those of the connection.

    vLLM calls `receive` again after the body to learn of a disconnect and cancel the request.
    """
    pending = deque(messages)

    async def receive_replayed() -> Message:
        return pending.popleft() if pending else await receive()

    return receive_replayed


def with_content_length(scope: Scope, num_bytes: int) -> Scope:
    """Return the scope with a corrected content-length header, if it has one (chunked bodies do
    not).
    """
    length = str(num_bytes).encode()
    headers = [
        (name, length if name == b"content-length" else value) for name, value in scope["headers"]
    ]
    return {**scope, "headers": headers}
