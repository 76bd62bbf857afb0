"""One call of a server's `/v1/agentkv` routes, and the connections by which it is made."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from agentkv.errors import AgentKVServerError, NoAnswerError, StatusError
from agentkv.visible import visible

if TYPE_CHECKING:
    import httpx

CALL_TIMEOUT_S = 3.0
MAX_POOLS = 8


def root_of(url: str) -> str:
    """The server's root, from either of its two URLs."""
    return url.rstrip("/").removesuffix("/v1")


def job_path(job_id: str) -> str:
    """The path of a job below `/v1/agentkv`."""
    # HTTP clients fold a segment of dots alone away
    segment = quote(job_id, safe="")
    return f"/jobs/{segment if segment.strip('.') else segment.replace('.', '%2E')}"


def without_password(text: str) -> str:
    """The text with the users and passwords of the URLs in it left out, for messages."""
    return re.sub(r"://[^/@\s]*@", "://", text)


def send_request(
    method: str,
    url: str,
    body: Mapping[str, object] | None,
    *,
    headers: Mapping[str, str],
    timeout_s: float = CALL_TIMEOUT_S,
    client: Any = None,
) -> Any:
    """Make one request; returns the JSON of the reply, raises AgentKVServerError.

    client: of httpx or httpx2; by default connections of our own. Connecting, sending and each part
    of the reply have `timeout_s` each, the whole reply twice that.
    """
    client = client or connections()
    content, deadline_s = bytearray(), time.monotonic() + 2 * timeout_s
    options = {"json": body, "headers": headers, "timeout": timeout_s, "follow_redirects": True}
    try:
        with client.stream(method, url, **options) as reply:
            for chunk in reply.iter_bytes():
                content += chunk
                if time.monotonic() > deadline_s:  # a server whose bytes trickle in
                    raise TimeoutError(f"more than {2 * timeout_s:g} s")
    except Exception as error:  # httpx's own, or that of a transport its owner gave it
        if type(error).__name__ == "TooManyRedirects":  # it will not pass
            raise AgentKVServerError(f"{url}: redirects without an end") from error
        is_late = any("Timeout" in kind.__name__ for kind in type(error).__mro__)
        text = f"{url}: no answer ({type(error).__name__}: {error}): is the server running?"
        raise NoAnswerError(text, is_late=is_late) from error
    if not reply.is_success:
        seen = shown(reply, content)
        raise StatusError(f"{url}: HTTP {reply.status_code} {seen}", reply.status_code)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise AgentKVServerError(f"{url}: no JSON came back") from error


def shown(reply: Any, content: bytes | bytearray) -> str:
    """The beginning of an answer on one line, for messages; a page for browsers says nothing."""
    if "html" in reply.headers.get("content-type", ""):
        return "with a page for browsers"
    return visible(bytes(content[:200]).decode(errors="replace").replace("\n", " "))


# A forked child must neither use nor close its parent's connections. No lock, which a fork could
# leave held: two first calls at once cost a second pool.
_clients: dict[tuple[int, int], httpx.Client] = {}


def connections(tls: Any = None) -> httpx.Client:
    """Connections of our own, one pool for each process and each `ssl.SSLContext` given."""
    import httpx  # slow to import, and not every user of agentkv talks to a server

    key = os.getpid(), id(tls)
    client = _clients.get(key)
    if client is not None:
        return client
    try:
        client = httpx.Client(verify=True if tls is None else tls)
    except (ImportError, ValueError, httpx.InvalidURL, OSError) as error:
        raise AgentKVServerError(
            f"no connection can be opened ({type(error).__name__}: {error}); it is set up by the "
            "environment: ALL_PROXY, HTTP_PROXY, HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE, SSL_CERT_DIR"
        ) from error
    while len(_clients) >= MAX_POOLS:
        _clients.pop(next(iter(_clients)))
    return _clients.setdefault(key, client)
