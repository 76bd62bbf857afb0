"""Keeps the event log, served by `GET /v1/agentkv/timestamps`, and writes it to a file.

A watcher on the engine's main thread; a thread of its own writes the file as it grows. Not only at
shutdown: with its default time-out of 0 s, vLLM kills the engine process right after asking it to
end (vllm/v1/utils.py, `shutdown`, 0.32.0).
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import queue
import threading
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentkv.errors import SettingsError
from agentkv.events import DETAILS, JobEvent, Trimmed
from agentkv.protocol import JobKey
from agentkv.visible import visible

SCANNED = 500
"""Events looked at for one answer: a fraction of a millisecond."""

Entry = dict[str, Any]
"""An event: its name, its time and its details."""


class EventLog:
    """Keeps the last `max_events` of all jobs, each with its seconds since the engine started.

    An event takes about 400 bytes (3 KiB with the longest texts). `writer` receives every event.
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
        self._entries: dict[int, tuple[JobKey, Entry]] = {}
        """By their number, counted from 0; the oldest are dropped."""
        self._next_number = 0
        self._jobs: dict[JobKey, deque[int]] = {}
        self._keys: defaultdict[str, dict[JobKey, None]] = defaultdict(dict)
        """Of all clients' jobs, by their own id."""

    def on_event(self, event: JobEvent) -> None:
        """Add an event of a job; a preempted request may have none."""
        key = event.job_id
        if key is None:
            return
        known = DETAILS[type(event)]
        entry = dict(zip(known.names, known.read(event), strict=False))
        entry["at_s"] = round(self._clock() - self._started_s, 6)
        if self._writer is not None:
            client = {"client": key.client} if key.client else {}
            self._writer.add({"job_id": key.own_id, **client, **shown(entry, None)})
        if self._max_events:
            numbers = self._jobs.get(key)
            if numbers is None:
                numbers = self._jobs[key] = deque()
                self._keys[key.own_id][key] = None
            numbers.append(self._next_number)
            self._entries[self._next_number] = key, entry
            self._next_number += 1
            if len(self._entries) > self._max_events:
                self._drop_oldest()

    def on_trimmed(self, event: Trimmed) -> None:
        """Add the first cut of a pin alone, since a decoding turn takes one block at a time; the
        `unpinned` event has the sum."""
        if event.pin.num_trimmed == event.blocks:
            self.on_event(event)

    def _drop_oldest(self) -> None:
        key, _ = self._entries.pop(self._next_number - self._max_events - 1)
        self._jobs[key].popleft()
        if not self._jobs[key]:
            del self._jobs[key], self._keys[key.own_id][key]
            if not self._keys[key.own_id]:
                del self._keys[key.own_id]

    @property
    def now_s(self) -> float:
        """Return the time that an event of this moment would have."""
        return round(self._clock() - self._started_s, 6)

    def is_shared(self, own_id: str) -> bool:
        """Tell whether jobs of several clients have this id."""
        return len(self._keys.get(own_id, ())) > 1

    def named(self, own_id: str) -> list[JobKey]:
        """Return the jobs of all clients with this id, the last active first. O(clients)."""
        keys = self._keys.get(own_id, ())
        return sorted(keys, key=lambda key: self._jobs[key][-1], reverse=True)

    def last_of(self, key: str, most: int) -> Sequence[Entry]:
        """Return the last `most` events of a job, oldest first. O(most)."""
        numbers = self._jobs.get(JobKey.read(key), ())
        last = [*itertools.islice(reversed(numbers), most)]
        return [self._entries[number][1] for number in reversed(last)]

    def page(
        self, number: int, most: int, viewer: str | None, own_id: str | None = None
    ) -> tuple[list[tuple[JobKey, Entry]], int | None]:
        """Return up to `most` events from that number on, and the number that the next page begins
        with; None for the last page.

        Of one client, or of all; of one job with `own_id`, else among the next SCANNED.
        """
        end = self._next_number
        if own_id is None:
            first = max(number, end - len(self._entries))
            end = min(first + SCANNED, end)
            keyed = ((each, self._entries[each][0]) for each in range(first, end))
        else:
            keyed = ((each, key) for key in self.named(own_id) for each in self._jobs[key])
        wanted = sorted(
            each for each, key in keyed if each >= number and viewer in (None, key.client)
        )
        if len(wanted) > most:
            end = wanted[most]
        entries = map(self._entries.__getitem__, wanted[:most])
        found = [(key, shown(entry, viewer)) for key, entry in entries]
        return found, None if end == self._next_number else end

    def newest(self, most: int, viewer: str | None, since_s: float) -> list[tuple[JobKey, Entry]]:
        """Return the newest events later than `since_s` in order, among the last SCANNED."""
        numbers = range(self._next_number - min(len(self._entries), SCANNED), self._next_number)
        first = bisect_right(numbers, since_s, key=lambda each: self._entries[each][1]["at_s"])
        later = map(self._entries.__getitem__, numbers[first:])
        found = [each for each in later if viewer is None or each[0].client == viewer]
        return [(key, shown(entry, viewer)) for key, entry in found[-most:]]

    def as_dict(self) -> dict[str, Any]:
        """Return all events by the id of their job."""
        jobs: dict[str, list[Entry]] = {}
        for key, entry in self._entries.values():
            jobs.setdefault(key.own_id, []).append(shown(entry, None))
        return {"jobs": jobs}

    def close(self) -> None:
        """Write the rest of the file, if there is one."""
        if self._writer is not None:
            self._writer.close()


def shown(entry: Entry, viewer: str | None) -> Entry:
    """Return an event as a client may see it (None: all), as plain data: a miss names who took the
    KV."""
    miss = entry.get("miss")
    return entry if miss is None else {**entry, "miss": miss.as_dict(viewer)}


FILE_STEM = "scheduler_timestamps"
MAX_QUEUED_EVENTS = 100_000
"""Events queued for a slow disk; further ones are dropped."""

logger = logging.getLogger(__name__)


def create_file(folder: Path) -> Path:
    """Create the next free of scheduler_timestamps.jsonl, scheduler_timestamps_2.jsonl, ...

    So a second run or a second engine gets a file of its own. With `show_commands` it holds
    commands, so it is for its owner alone, as is the folder if it is made here. Raises OSError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in itertools.count(1):
        name = FILE_STEM if number == 1 else f"{FILE_STEM}_{number}"
        path = folder / f"{name}.jsonl"
        with suppress(FileExistsError):
            path.touch(mode=0o600, exist_ok=False)
            return path
    raise AssertionError("unreachable")


class EventWriter:
    """Writes one line per event in a daemon thread; what a full disk does not take is lost.

    The first line of each file is `about`: what the server is. The file is opened for each event,
    so that a log that was rotated, by a rename or by emptying it, begins again.
    """

    def __init__(self, folder: Path, about: Mapping[str, object]) -> None:
        """Raises SettingsError if the folder cannot be written to."""
        self._about = _line({"event": "server", "at_s": 0.0, **about})
        try:
            self.path = create_file(folder)
        except OSError as error:
            raise SettingsError(
                f"--run-output-dir {folder}: cannot write there ({error}); give a folder that can "
                "be written to"
            ) from error
        self._has_failed = False
        self._events: queue.SimpleQueue[Mapping[str, object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="agentkv-record", daemon=True)
        self._thread.start()

    def add(self, event: Mapping[str, object]) -> None:
        """Queue an event; never blocks and never raises."""
        if self._thread.is_alive() and self._events.qsize() < MAX_QUEUED_EVENTS:
            self._events.put(event)

    def close(self, timeout_s: float = 2.0) -> None:
        """Write the queued events, for at most `timeout_s`."""
        self._events.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._append(_line(event))
                self._has_failed = False
            except OSError as error:
                if not self._has_failed:
                    logger.error("agentkv: events are lost, %s: %s", self.path, error)
                self._has_failed = True

    def _append(self, line: bytes) -> None:
        """Append a whole line, or nothing. Raises OSError."""
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(file).st_size
            text = line if size else self._about + line
            if os.write(file, text) < len(text):
                os.ftruncate(file, size)
                raise OSError("no space for the whole of it")
        finally:
            os.close(file)


def _line(event: Mapping[str, object]) -> bytes:
    return visible(json.dumps(event)).encode() + b"\n"
