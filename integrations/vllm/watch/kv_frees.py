"""Finds when the KV of a job is gone for good, and says it to all who listen on a Unix socket.

Only the end of a job, or the abort of its only turn, is terminal. A swap to a KV tier and back is
none, and blocks that a job loses while it goes on are announced with its end.
"""

from __future__ import annotations

import json
import logging
import queue
import re
import socket
import threading
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from agentkv.errors import SettingsError
from agentkv.events import Aborted, Arrived, Closed, KVFreed
from agentkv.listeners import FreeReason, KVFree
from agentkv.protocol import JobKey
from agentkv.watchers import EventStream, Watcher

MAX_REQUESTS = 1000
"""Requests of one job that a free names, the last ones."""
MAX_ID_CHARS = 512
"""Longer ids of requests are named by their start."""
MAX_WAITING_LINES = 10_000
"""Frees that wait for a slow reader; further ones are left out, as their numbers say."""
MAX_READERS = 64
SEND_TIMEOUT_S = 1.0
"""A reader that takes nothing for this long is disconnected."""
CLOSING_S = 2.0

logger = logging.getLogger(__name__)


class KVFrees(Watcher):
    """Emits KVFreed when the KV of a job is gone for good: its requests, each named once."""

    def __init__(self, stream: EventStream) -> None:
        self._emit = stream.emit
        self._num_frees = 0
        self._requests: dict[JobKey, dict[str, None]] = {}
        """Requests of each job since its last free, in order."""

    def on_arrived(self, event: Arrived) -> None:
        """Note the request, and what opened its job if that was not known to be one then."""
        job, request_ids = event.turn.job, [event.turn.request_id]
        known = self._requests.get(event.job_id)
        if known is None:
            known = self._requests[event.job_id] = {}
            if job.is_inferred and job.num_turns <= 2:
                request_ids.insert(0, job.own_id.removeprefix("inferred-"))
        for request_id in request_ids:
            known[reply_id(request_id)[:MAX_ID_CHARS]] = None
        if len(known) > MAX_REQUESTS:
            del known[next(iter(known))]

    def on_aborted(self, event: Aborted) -> None:
        """Free a job's KV with the abort of its only turn, unless it is pinned; it may go on."""
        turn, job = event.turn, event.turn.job
        is_closed_next = turn.is_last_step or job.is_released
        if not (event.is_held or job.live or turn.is_side_request or is_closed_next):
            self._free(event.job_id, "aborted")

    def on_closed(self, event: Closed) -> None:
        """Free a job's KV with its end."""
        self._free(event.job_id, event.reason)

    def _free(self, job_id: JobKey, reason: FreeReason) -> None:
        requests = self._requests.pop(job_id, None)
        if requests:
            self._num_frees += 1
            self._emit(KVFreed, job_id, self._num_frees, reason, [*requests])
            if reason == "aborted":
                self._requests[job_id] = {}  # what opened it has been named


class KVSocket(Watcher):
    """Writes a line for each free to everybody who is connected to a Unix socket.

    The main thread only queues the line. A connection hears what is freed from its start on; a
    reader that falls behind is disconnected, and none waits for another for more than a second.
    """

    def __init__(self, path: str) -> None:
        """Make the socket, for the user of this process alone. Raises SettingsError if it cannot
        be made, or another server has it."""
        self._path = Path(path)
        self._listening = _listen(self._path)
        self._readers: list[socket.socket] = []
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="agentkv-kv-socket", daemon=True)
        self._thread.start()

    def on_kv_freed(self, event: KVFreed) -> None:
        """Queue the free as a line of JSON; never blocks."""
        key = event.job_id
        if self._lines.qsize() < MAX_WAITING_LINES:
            requests = tuple(event.request_ids)
            free = KVFree(event.number, key.own_id, requests, event.reason, key.client)
            self._lines.put(json.dumps(asdict(free)).encode() + b"\n")

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            self._take_readers()  # they wait in the socket's backlog, and nothing was freed since
            self._readers = [reader for reader in self._readers if self._has_sent(reader, line)]

    def _take_readers(self) -> None:
        with suppress(BlockingIOError):
            while True:
                reader, _ = self._listening.accept()
                reader.settimeout(SEND_TIMEOUT_S)
                self._readers.append(reader)
                if len(self._readers) > MAX_READERS:
                    self._readers.pop(0).close()

    def _has_sent(self, reader: socket.socket, line: bytes) -> bool:
        try:
            reader.sendall(line)
        except OSError as error:
            reader.close()
            logger.info("agentkv: a reader of %s is gone: %s", self._path, error)
            return False
        return True

    def close(self) -> None:
        """Write what is queued, for CLOSING_S at most, and remove the socket."""
        self._lines.put(None)
        self._thread.join(CLOSING_S)
        for each in (*self._readers, self._listening):
            each.close()
        self._path.unlink(missing_ok=True)


def _listen(path: Path) -> socket.socket:
    """Listen at this path, where a server that has died may have left its socket."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.setblocking(False)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other, suppress(OSError):
            other.connect(str(path))
            raise SettingsError(f"setting 'kv_socket': another server has {path}; give another one")
        if path.is_socket():
            path.unlink()
        made.bind(str(path))
        path.chmod(0o600)
        made.listen(MAX_READERS)
    except OSError as error:
        made.close()
        raise SettingsError(f"setting 'kv_socket': cannot listen at {path}: {error}") from error
    return made


_CHILD = re.compile(r"^\d+_(?=(?:chat)?cmpl-)")
_RANDOM_END = re.compile(r"-[0-9a-f]{8}$")
_PROMPT_NUMBER = re.compile(r"^(cmpl-.*)-\d+$")


def reply_id(request_id: str) -> str:
    """Return the `id` of the reply that a request of the engine belongs to.

    vLLM's API server puts the number of a choice before it, and behind it that of a completion's
    prompt and eight random digits (vllm/v1/engine/input_processor.py:371, 0.32.0).
    """
    request_id = _RANDOM_END.sub("", _CHILD.sub("", request_id))
    return _PROMPT_NUMBER.sub(r"\1", request_id)
