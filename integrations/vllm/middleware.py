"""The plugin's ASGI middleware in vLLM's API server: tags from the wire to the engine.

vLLM instantiates it through its own `--middleware` option. It takes the tags off a request, checks
them and folds them into `vllm_xargs`; at start-up it adds the routes under /v1/agentkv. Under a
policy that is not ours it hands every call straight on.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from agentkv.errors import TagError
from agentkv.protocol import SESSION_HEADERS, fields_from_headers, parse_tags

from .answers import anthropic_error, openai_error
from .engine_link import EngineLink
from .folding import fold, may_hold_tags
from .request_body import read_body, replay, replay_body, with_content_length
from .routes import add_routes
from .server_policy import TokenVerifier, find_token_verifier, served_policy

_ANTHROPIC_PATH = "/v1/messages"
_TAGGED_PATHS = frozenset(
    ("/v1/chat/completions", "/v1/completions", "/v1/responses", _ANTHROPIC_PATH)
)
_HEADER_NAMES = frozenset(name.encode() for name in SESSION_HEADERS)

# vLLM takes this header into `request.session_id` itself, on all four routes, and the scheduler
# falls back to that: alone it needs no folding, and so no parsing of the body.
_NATIVE_HEADER = "x-session-id"


class AgentKVMiddleware:
    """One per API server process; does its work in the event loop and never blocks it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._engine: EngineLink | None = None
        self._verifier: TokenVerifier | None = None
        self._is_set_up = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._is_set_up:
            self._set_up(scope)
        if self._engine is None or not _takes_tags(scope):
            await self._app(scope, receive, send)
        else:
            await self._fold_tags(self._engine, scope, receive, send)

    def _set_up(self, scope: Scope) -> None:
        """Runs on the first call, which is vLLM's lifespan start: its state is complete by then."""
        self._is_set_up = True
        app = scope["app"]
        if served_policy(app) is not None:
            self._engine = EngineLink(app.state.engine_client)
            self._verifier = find_token_verifier(app)
            add_routes(app, self._engine)

    async def _fold_tags(
        self, engine: EngineLink, scope: Scope, receive: Receive, send: Send
    ) -> None:
        # User middleware runs before vLLM's key check, which answers 401 without reading a body.
        if self._verifier and not self._verifier.verify_token(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        body, messages = await read_body(receive)
        if body is None:
            await self._app(scope, replay(messages, receive), send)
            return
        try:
            folded = _fold_request(scope, body)
        except TagError as error:
            engine.count_bad_tag()
            is_anthropic = _path(scope) == _ANTHROPIC_PATH
            answer = (
                anthropic_error(str(error))
                if is_anthropic
                else openai_error(400, str(error), field=error.field)
            )
            await answer(scope, receive, send)
            return
        if folded is not body:
            scope = with_content_length(scope, len(folded))
        await self._app(scope, replay_body(folded, receive), send)


def _takes_tags(scope: Scope) -> bool:
    return scope["type"] == "http" and scope["method"] == "POST" and _path(scope) in _TAGGED_PATHS


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _fold_request(scope: Scope, body: bytes) -> bytes:
    headers = _session_headers(scope)
    if may_hold_tags(body) or headers.keys() - {_NATIVE_HEADER}:
        return fold(body, fields_from_headers(headers))
    if headers:
        parse_tags(fields_from_headers(headers))
    return body


def _session_headers(scope: Scope) -> dict[str, str]:
    """The session headers that carry something; an empty one counts as absent, as in vLLM."""
    return {
        name.decode(): value.decode("latin-1")
        for name, value in scope["headers"]
        if name in _HEADER_NAMES and value
    }
