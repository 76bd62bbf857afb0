"""Drops a job's entries from a ContextPilot index once the job's KV is gone for good.

The listener `contextpilot` posts to the index server, or calls an index in its own process. It
needs no package in the engine. Do not set CONTEXTPILOT_INDEX_URL for the server itself: the
package's own hook for vLLM drops an entry whenever the prefix cache evicts it, although the job
goes on, and fails under vLLM 0.32.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

from agentkv.errors import InputError
from agentkv.listeners import KVFree, WebhookListener

_PREFIX = re.compile(r"^(?:chatcmpl|cmpl|batch)-")
NO_INDEX_YET = 503
"""Status of the index server before the first /reorder: it has no entry that could be dropped."""


class Index(Protocol):
    """The part of `contextpilot.ContextPilot` (0.5.0) that is called."""

    def remove_requests(self, request_ids: set[str]) -> Any:
        """Drop the entries of these requests; unknown ones are ignored."""
        ...


def index_ids(frees: Sequence[KVFree]) -> list[str]:
    """The ids of the freed requests as the index knows them: vLLM puts a prefix before the id that
    a client gives as `request_id` or `X-Request-Id`."""
    return list(
        dict.fromkeys(
            _PREFIX.sub("", request_id) for free in frees for request_id in free.request_ids
        )
    )


class ContextPilotListener(WebhookListener):
    """Removes the requests of ended jobs from a ContextPilot index."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8765",
        *,
        index: Index | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        """`url` is that of an index server. With an `index` in this process nothing is posted.

        Raises InputError for another URL than that of an HTTP server.
        """
        super().__init__(url.rstrip("/") + "/evict", timeout_s=timeout_s)
        if index is not None and not callable(getattr(index, "remove_requests", None)):
            raise InputError(f"index: got {index!r:.80}, which has no method remove_requests")
        self._index = index

    def on_frees(self, frees: Sequence[KVFree]) -> None:
        ids = index_ids(frees)
        if self._index is not None:
            self._index.remove_requests(set(ids))
        else:
            self.post(self._path, {"request_ids": ids}, accepted=[NO_INDEX_YET])
