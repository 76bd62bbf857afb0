"""The event log of each job, served by `GET /v1/agentkv/timestamps` and written to a file.

The retention room adds events on the engine's main thread; a thread of its own writes the file as
it grows. Not only at shutdown: with its default time-out of 0 s, vLLM kills the engine process
right after asking it to end (vllm/v1/utils.py, `shutdown`, 0.32.0).
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import queue
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

from agentkv.errors import SettingsError
from agentkv.policies.settings import Settings
from agentkv.protocol import client_and_id

MAX_COMMAND_CHARS = 512
"""Characters kept of a command; the longest allowed would make events of 16 KiB."""
MAX_LOOKED_AT = 32
"""Events of a job looked at for the last one of a kind."""
MAX_SCANNED = 2000
"""Events looked at for the newest ones: about a millisecond."""


class EventLog:
    """Events per job, each with its seconds since the engine started, on a monotonic clock.

    Keeps at most `max_events` in all, of about 400 bytes each (3 KiB with the longest texts), and
    drops the least recently used job first. `writer` receives every event.
    """

    def __init__(
        self,
        *,
        max_events: int,
        clock: Callable[[], float],
        writer: EventWriter | None = None,
    ) -> None:
        self._writer = writer
        self._max_events = max_events
        self._clock = clock
        self._started_s = clock()
        self._num_events = 0
        self._jobs: OrderedDict[str, deque[dict[str, Any]]] = OrderedDict()
        self.watcher: Callable[[str, str, Mapping[str, object]], None] | None = None
        """Is told of each event: its job's key, its name and its details."""

    def add(self, job_id: str, event: str, **details: object) -> None:
        if self.watcher is not None:
            self.watcher(job_id, event, details)
        if not self._max_events and self._writer is None:
            return
        at_s = round(self._clock() - self._started_s, 6)
        entry = {"event": event, "at_s": at_s, **details}
        if self._writer is not None:
            self._writer.add({"job_id": client_and_id(job_id)[1], **entry})
        if self._max_events:
            self._keep(job_id, entry)

    def _keep(self, job_id: str, entry: dict[str, Any]) -> None:
        self._jobs.setdefault(job_id, deque()).append(entry)
        self._jobs.move_to_end(job_id)
        self._num_events += 1
        if self._num_events > self._max_events:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        if len(self._jobs) > 1:
            _, events = self._jobs.popitem(last=False)
            self._num_events -= len(events)
        else:
            next(iter(self._jobs.values())).popleft()
            self._num_events -= 1

    def counts(self, of_client: str | None = None) -> list[tuple[str, int]]:
        """Return the keys of jobs, of one client or of all, with their numbers of events."""
        return [
            (key, len(events))
            for key, events in self._jobs.items()
            if of_client is None or client_and_id(key)[0] == of_client
        ]

    def part(self, slices: Sequence[tuple[str, int, int]], since_s: float) -> dict[str, Any]:
        """Return the events in these slices (a job's key, start and stop) later than `since_s`."""
        jobs: dict[str, list[dict[str, Any]]] = {}
        for key, start, stop in slices:
            events = itertools.islice(self._jobs.get(key, ()), start, stop)
            later = [event for event in events if event["at_s"] > since_s]
            jobs.setdefault(client_and_id(key)[1], []).extend(later)
        return {"jobs": jobs}

    @property
    def now_s(self) -> float:
        """The time that an event of this moment would have."""
        return round(self._clock() - self._started_s, 6)

    def last(self, job_id: str, event: str) -> dict[str, Any] | None:
        """The last event of this kind among the last MAX_LOOKED_AT of a job."""
        latest = itertools.islice(reversed(self._jobs.get(job_id, ())), MAX_LOOKED_AT)
        return next((entry for entry in latest if entry["event"] == event), None)

    def since(
        self, since_s: float, of_client: str | None, most: int
    ) -> tuple[list[tuple[str, dict[str, Any]]], int]:
        """The newest events later than `since_s` with their jobs' keys, in order of time; and how
        many were left out, as far as MAX_SCANNED events tell."""
        found: list[tuple[str, dict[str, Any]]] = []
        for key, events in reversed(self._jobs.items()):
            if events[-1]["at_s"] <= since_s or len(found) >= MAX_SCANNED:
                break
            if of_client is None or client_and_id(key)[0] == of_client:
                later = itertools.takewhile(lambda entry: entry["at_s"] > since_s, reversed(events))
                found += [(key, entry) for entry in itertools.islice(later, MAX_SCANNED)]
        found.reverse()  # so that events of one time keep their order
        found.sort(key=lambda each: float(each[1]["at_s"]))
        return found[-most:], max(0, len(found) - most)

    def as_dict(self, of_client: str | None = None) -> dict[str, Any]:
        """Return the events by job, of one client or of all."""
        jobs: dict[str, list[dict[str, Any]]] = {}
        for key, events in self._jobs.items():
            client, job_id = client_and_id(key)
            if of_client is None or client == of_client:
                jobs.setdefault(job_id, []).extend(events)
        return {"jobs": jobs}

    def close(self) -> None:
        """Write the rest of the file, if there is one."""
        if self._writer is not None:
            self._writer.close()


FILE_STEM = "scheduler_timestamps"
MAX_WAITING_EVENTS = 100_000
"""Events queued for a slow or full disk; further ones are dropped."""
RETRY_S = 5.0
"""Seconds between two attempts to write to a full disk."""

logger = logging.getLogger(__name__)


def create_file(folder: Path) -> FileIO:
    """Create the next free of scheduler_timestamps.jsonl, scheduler_timestamps_2.jsonl, ...

    So a second run or a second engine gets a file of its own. It holds commands, and so it is for
    its owner alone, as is the folder if it is made here. Raises OSError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in itertools.count(1):
        name = FILE_STEM if number == 1 else f"{FILE_STEM}_{number}"
        try:
            return FileIO(folder / f"{name}.jsonl", "x", opener=partial(os.open, mode=0o600))
        except FileExistsError:
            continue
    raise AssertionError("unreachable")


class EventWriter:
    """A daemon thread that writes one line per event, and on a full disk waits for space."""

    def __init__(self, folder: Path, *, retry_s: float = RETRY_S) -> None:
        self._file = create_file(folder)
        self.path = Path(str(self._file.name))
        self._retry_s = retry_s
        self._has_failed = False
        self._is_closing = threading.Event()
        self._events: queue.SimpleQueue[Mapping[str, object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="agentkv-record", daemon=True)
        self._thread.start()

    def add(self, event: Mapping[str, object]) -> None:
        """Queue an event; never blocks and never raises."""
        if self._thread.is_alive() and self._events.qsize() < MAX_WAITING_EVENTS:
            self._events.put(event)

    def close(self, timeout_s: float = 2.0) -> None:
        """Write the queued events, for at most `timeout_s`; waits for no space."""
        self._is_closing.set()
        self._events.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        with self._file:
            while (event := self._events.get()) is not None and self._write(event):
                pass

    def _write(self, event: Mapping[str, object]) -> bool:
        """Write an event as a line; False if there is no space and the engine ends."""
        rest = json.dumps(event).encode() + b"\n"
        while rest:
            try:
                rest = rest[self._file.write(rest) :]
            except OSError as error:
                if not self._has_failed:
                    self._has_failed = True
                    logger.error("agentkv: the event log waits, %s: %s", self.path, error)
                if self._is_closing.wait(self._retry_s):
                    return False
        self._has_failed = False
        return True


def open_writer(settings: Settings) -> EventWriter | None:
    """Return the writer for `run_output_dir`, or None if it is not set.

    Raises SettingsError if the folder cannot be written to.
    """
    if settings.run_output_dir is None:
        return None
    try:
        return EventWriter(Path(settings.run_output_dir))
    except OSError as error:
        raise SettingsError(
            f"--run-output-dir {settings.run_output_dir}: cannot write there ({error}); "
            "give a folder that can be written to"
        ) from error
