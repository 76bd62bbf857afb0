"""KV listeners: what is said when the KV of a job is gone for good, and how a program hears it.

A server with the setting `kv_socket` writes one line of JSON for each such free to everybody who is
connected to that Unix socket, so that an index of contexts outside vLLM drops its entries then and
only then. Importable without vLLM.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

FreeReason = Literal["last_step", "released", "no_tool_call", "lease", "aborted"]
"""Why the KV of a job is given up for good: the reasons that end a job, or abort its only turn."""


@dataclass(frozen=True, slots=True)
class KVFree:
    """The KV of one job's requests is given up for good."""

    number: int
    """Counts the frees of one engine from 1: a gap says how many a listener missed."""
    job_id: str
    request_ids: tuple[str, ...]
    """The requests of the job since its last free, oldest first, each by the `id` of its reply."""
    reason: FreeReason
    client: str = ""
    """Whose job it is, by 16 digits: two clients may use one id. "" without an API server."""

    @classmethod
    def read(cls, line: str | bytes) -> KVFree:
        """The free that a line of the socket says."""
        said = json.loads(line)
        return cls(**{**said, "request_ids": tuple(said["request_ids"])})


def follow(path: str, *, retry_s: float | None = 1.0) -> Iterator[KVFree]:
    """Yield each free that the server with this `kv_socket` says from now on.

    Connects again after `retry_s` seconds when the server is gone; None: it ends then, and raises
    OSError if there is none at first.
    """
    while True:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(path)
                with connection.makefile("rb") as lines:
                    for line in lines:
                        if line.endswith(b"\n"):  # else the server has died in the middle of it
                            yield KVFree.read(line)
        except OSError:
            if retry_s is None:
                raise
        if retry_s is None:
            return
        time.sleep(retry_s)
