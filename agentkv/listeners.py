"""KV listeners: the base class to write one, what it is given, and the shipped webhook.

A listener gets one call for each job whose KV the server gives up for good, so that an index of
contexts outside vLLM can drop its entries then and only then. Importable without vLLM. The plugin
calls each listener in a thread of its own in the engine process, so that none can stall the engine.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Literal
from urllib.parse import urlsplit

from agentkv.errors import AgentKVError, InputError
from agentkv.named_classes import NamedClasses

FreeReason = Literal["last_step", "released", "no_tool_call", "lease", "aborted"]
"""Why the KV of a job is given up for good: the reasons that end a job, or abort its only turn."""


@dataclass(frozen=True, slots=True)
class KVFree:
    """The KV of one job's requests is given up for good."""

    number: int
    """Counts the frees of one engine from 1: a receiver knows a repeated one by it."""
    job_id: str
    """The id that its client gave it."""
    request_ids: tuple[str, ...]
    """The requests of the job since its last free, oldest first, each by the `id` of its reply."""
    reason: FreeReason
    client: str = ""
    """Whose job it is, by 16 digits: two clients may use one id. "" without an API server."""


class UndeliveredError(AgentKVError):
    """A listener's receiver cannot be reached now: the same frees are tried again, then dropped."""


class KVListener:
    """Learns when KV is gone for good. Subclass it, and name the class in the setting `listeners`.

    Called in a thread of its own, for one job after the other in the order of the frees. An
    exception is counted in `agentkv:listener_faults_total` and costs nothing else; with 20 faults
    among 10,000 calls the listener is switched off.
    """

    max_batch = 1
    """Frees that one call of `on_frees` may hold."""

    def on_kv_blocks_freed(
        self, job_id: str, request_ids: Sequence[str], reason: FreeReason
    ) -> None:
        """The job is over, aborted or forgotten, and with it the KV of these requests.

        Once for each such end. A swap to a KV tier and back is none; memory pressure, preemption
        and a history that was cut back are none either while the job goes on.
        """

    def on_frees(self, frees: Sequence[KVFree]) -> None:
        """Take up to `max_batch` frees at once; override it to send them together."""
        for free in frees:
            self.on_kv_blocks_freed(free.job_id, free.request_ids, free.reason)


class WebhookListener(KVListener):
    """Posts frees as JSON to a URL: `{"frees": [{...}]}`, each with the fields of KVFree.

    An answer of 200 to 299 accepts them. After any other one, or none, they are sent again, so a
    receiver may see a `number` twice.
    """

    max_batch = 100

    def __init__(self, url: str, *, timeout_s: float = 5.0) -> None:
        """Raises InputError for a URL that is not `http://host/...` or `https://host/...`."""
        parts = urlsplit(url)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.username
            or parts.port == 0
        ):
            raise InputError(
                f"a listener's url: got {url!r}, allowed are http://HOST/PATH and "
                "https://HOST/PATH, without a user name"
            )
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._timeout_s = timeout_s
        self._host = parts.netloc
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    def on_frees(self, frees: Sequence[KVFree]) -> None:
        self.post(self._path, {"frees": [asdict(free) for free in frees]})

    def post(self, path: str, body: Mapping[str, Any], *, accepted: Sequence[int] = ()) -> None:
        """Post JSON; `accepted` are statuses that count as 200 does. Raises UndeliveredError."""
        connection = self._kind(self._host, timeout=self._timeout_s)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body).encode(), headers)
            status = connection.getresponse().status
        except (OSError, HTTPException) as error:
            raise UndeliveredError(f"{self._host}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if not 200 <= status < 300 and status not in accepted:
            raise UndeliveredError(f"{self._host}: answered with status {status}")


SHIPPED: Mapping[str, str] = {
    "webhook": "agentkv.listeners:WebhookListener",
    "contextpilot": "agentkv.integrations.contextpilot:ContextPilotListener",
}
"""Name -> class of the listeners that agentkv brings, imported when they are asked for."""

_CLASSES = NamedClasses("listener", KVListener, "agentkv.listeners", tuple(SHIPPED))


def listener_class(name: str, options: Mapping[str, Any]) -> type[KVListener]:
    """The class behind a name, which takes these options.

    Raises InputError for a name that leads to no listener, and for options that the class does not
    take.
    """
    found = _CLASSES.load(SHIPPED.get(name, name))
    try:
        inspect.signature(found).bind(**options)
    except TypeError as error:
        raise InputError(f"listener {name!r}: its options: {error}") from None
    return found


def make_listener(name: str, options: Mapping[str, Any]) -> KVListener:
    """The listener of that name with its options; errors of its own are raised as InputError."""
    build = listener_class(name, options)
    try:
        return build(**options)
    except Exception as error:
        raise InputError(f"listener {name!r}: {error}") from error
