"""Finds the httpx client behind each SDK's client, and has its requests tagged, or those of all.

A session with a client covers that one httpx client while it is open, and `job.client` is bound to
its job for good; a session without one patches the classes of httpx.
"""

from __future__ import annotations

import functools
import sys
import threading
from functools import cached_property
from typing import Any, TypeVar, cast

from agentkv.client.job import Job, job_covering
from agentkv.client.patches import Method, Patch
from agentkv.client.tagger import FindJob, keys_among, tagging

ClientT = TypeVar("ClientT")

_LIBRARIES = ("httpx", "httpx2")


def _patch(library: str, owner: str) -> Patch:
    def wrap(send: Method, patch: Patch) -> Method:
        def find_job(client: Any) -> Job[Any] | None:
            return job_covering(client) if patch.is_active else None

        return tagging(send, find_job, is_async=owner == "AsyncClient")

    return Patch(f"{library}:{owner}.send", wrap)


PATCHES = tuple(
    _patch(library, owner) for library in _LIBRARIES for owner in ("Client", "AsyncClient")
)
"""Make the requests of every httpx client turns of the job that is current."""


def http_client_of(client: object) -> Any | None:
    """The httpx client through which a client sends: itself, or that of an SDK's client."""
    for candidate in (client, getattr(client, "_client", None)):
        for library in filter(None, map(sys.modules.get, _LIBRARIES)):
            if isinstance(candidate, (library.Client, library.AsyncClient)):
                return candidate
    return None


def required_http_client(client: object) -> Any:
    """The same; TypeError if it has none."""
    if isinstance(client, type):
        raise TypeError(
            f"session(client): got the class {client.__name__}, allowed is a client made of it: "
            f"session({client.__name__}(...))"
        )
    found = http_client_of(client)
    if found is None:
        raise TypeError(
            f"session(client): got {type(client).__name__}, allowed is an OpenAI or Anthropic "
            "client, or one of httpx (or none: then all of them are covered; other libraries send "
            "job.headers)"
        )
    return found


def _tagging_one(http_client: Any, find_job: FindJob) -> Method:
    """The `send` of one httpx client, perhaps replaced by others, with its requests tagged."""
    send = http_client.send
    is_async = hasattr(http_client, "aclose")
    tagged = tagging(
        lambda _, *args, **options: send(*args, **options), find_job, is_async=is_async
    )
    return functools.partial(tagged, http_client)


_lock = threading.Lock()
_covered: dict[int, tuple[int, Method, Method | None]] = {}
"""By the id of an httpx client: its open sessions, our `send`, and the one that it had itself."""


def cover(http_client: Any) -> None:
    """Make the requests of one httpx client turns until `uncover`."""
    with _lock:
        attributes = vars(http_client)
        if id(http_client) not in _covered:
            ours = _tagging_one(http_client, job_covering)
            _covered[id(http_client)] = 0, ours, attributes.get("send")
            attributes["send"] = ours
        num_sessions, ours, before = _covered[id(http_client)]
        _covered[id(http_client)] = num_sessions + 1, ours, before


def uncover(http_client: Any) -> None:
    """Undo one `cover`; with the last one the client is as it was."""
    with _lock:
        num_sessions, ours, before = _covered.pop(id(http_client))
        attributes = vars(http_client)
        if num_sessions > 1:
            _covered[id(http_client)] = num_sessions - 1, ours, before
        elif attributes.get("send") is not ours:
            pass  # replaced once more by others: ours stays below theirs, and finds no job
        elif before is None:
            del attributes["send"]
        else:
            attributes["send"] = before


def bound(client: ClientT, job: Job[Any]) -> ClientT:
    """A copy of a client, over the same connections, whose requests are turns of this job."""
    http_client: Any = http_client_of(client)
    if http_client is None:
        return client
    twin = _copy_of(http_client, _lent(cast(Any, type(http_client))))
    vars(twin)["_agentkv_owner"] = http_client
    vars(twin)["send"] = _tagging_one(http_client, lambda _: None if job.is_over else job)
    if client is http_client:
        return cast(ClientT, twin)
    copy = _copy_of(client, type(client))
    vars(copy)["_client"] = twin
    return cast(ClientT, copy)


def _copy_of(client: Any, kind: Any) -> Any:
    """A copy made without calling a constructor."""
    twin = kind.__new__(kind)
    for name, value in vars(client).items():
        # client.chat and the like are cached, and refer to the client they were made for
        if not isinstance(getattr(type(client), name, None), cached_property):
            vars(twin)[name] = value
    return twin


@functools.cache
def _lent(kind: Any) -> Any:
    """A kind of httpx client that leaves it to its owner to open and close the connections; the
    SDKs' own kinds close theirs when they are garbage."""
    members: dict[str, Any] = {
        "is_closed": property(lambda self: self._agentkv_owner.is_closed),
        "__del__": lambda self: None,
    }
    for close in ("close", "aclose"):
        if hasattr(kind, close):
            members[close] = lambda self, name=close: getattr(self._agentkv_owner, name)()
    return type(kind.__name__, (kind,), members)


def keys_of(client: Any) -> dict[str, str]:
    """The key and headers that a client sends with each request."""
    headers = getattr(client, "default_headers", None) or getattr(client, "headers", None) or {}
    return keys_among(headers)
