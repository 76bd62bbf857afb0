"""How the routes of a server are called: by the client whose calls go there, if that can be.

Then its transport, its certificates and its key of that moment count, whatever they are. A client
that is gone, closed or asynchronous (outside of its loop) is stood in for by our own connections
with the headers it had last.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Mapping
from typing import Any

from agentkv.errors import AgentKVServerError
from agentkv.server_api import CALL_TIMEOUT_S, NoAnswerError, ServerAPI, StatusError, send_request


class Reach:
    """One way to a server. `headers` are sent beside those of the client.

    is_direct: the client's calls go to this very server, so that it can call the routes itself.
    """

    def __init__(
        self,
        client: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        is_direct: bool = True,
    ) -> None:
        self._own_headers = dict(headers or {})
        self._client_ref = None if client is None else weakref.ref(client)
        self._is_direct = is_direct
        self._last_headers = self._own_headers
        self.headers()

    def is_by(self, client: Any, headers: Mapping[str, str]) -> bool:
        """Whether this is the way by that client, with these headers of a request."""
        return client is not None and self._client() is client and self._own_headers == headers

    def headers(self) -> Mapping[str, str]:
        """What our own connection is to send: the client's key and headers, as of now."""
        client = self._client()
        if client is not None:
            all_headers = {**client.auth_headers, **client.default_headers, **self._own_headers}
            self._last_headers = {
                name: value
                for name, value in all_headers.items()
                if isinstance(value, str) and not name.lower().startswith("x-stainless")
            }
        return self._last_headers

    @property
    def is_async(self) -> bool:
        """Whether the routes are best called on the loop of an asynchronous client."""
        client = self._client()
        return self._is_direct and client is not None and _is_async(client)

    def api(self, root_url: str) -> ServerAPI:
        """The routes, to be called from any thread."""
        headers, client = self.headers(), self._client()
        if client is None or not self._is_direct or _is_async(client):
            return ServerAPI(root_url, headers=headers)
        own_headers = self._own_headers

        def send(method: str, url: str, body: Mapping[str, object] | None) -> Any:
            if client.is_closed():
                return send_request(method, url, body, headers=headers)
            try:
                return _sdk_request(client, method, url, body, own_headers)
            except Exception as error:  # the SDK's, or of whatever its owner put below it
                raise _failure_of(error, url) from error

        return ServerAPI(root_url, send=send)

    async def info(self, root_url: str) -> dict[str, Any]:
        """`ServerAPI.info` by an asynchronous client; raises the same, in CALL_TIMEOUT_S."""
        import anyio  # the SDK brings it

        url = f"{root_url}/v1/agentkv/info"
        try:
            with anyio.fail_after(CALL_TIMEOUT_S):
                answer = await _sdk_request(self._client(), "GET", url, None, self._own_headers)
        except TimeoutError as error:
            raise NoAnswerError(f"{url}: no answer within {CALL_TIMEOUT_S:g} s") from error
        except Exception as error:
            raise _failure_of(error, url) from error
        if not isinstance(answer, dict):
            raise AgentKVServerError(f"{url}: no JSON object came back")
        return answer

    def _client(self) -> Any:
        return None if self._client_ref is None else self._client_ref()


def _sdk_request(
    client: Any,
    method: str,
    url: str,
    body: Mapping[str, object] | None,
    headers: Mapping[str, str],
) -> Any:
    """The JSON that came back, or, of an asynchronous client, an awaitable of it."""
    options = {"timeout": CALL_TIMEOUT_S, "max_retries": 0, "headers": headers}
    if method == "GET":
        return client.get(url, cast_to=object, options=options)
    return client.post(url, cast_to=object, body=body, options=options)


def _failure_of(error: Exception, url: str) -> AgentKVServerError:
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return StatusError(f"{url}: HTTP {status} {str(error)[:200]}", status)
    cause = error.__cause__ or error
    return NoAnswerError(f"{url}: no answer ({type(cause).__name__}: {cause})")


def _is_async(client: Any) -> bool:
    return inspect.iscoroutinefunction(type(client).request)
