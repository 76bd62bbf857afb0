"""The event log of each job, served by `GET /v1/agentkv/timestamps` and written to a file.

A watcher on the engine's main thread; a thread of its own writes the file as it grows. Not only at
shutdown: with its default time-out of 0 s, vLLM kills the engine process right after asking it to
end (vllm/v1/utils.py, `shutdown`, 0.32.0).
"""

from __future__ import annotations

import itertools
import json
import logging
import queue
import threading
from bisect import bisect_right
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from io import FileIO
from operator import attrgetter
from pathlib import Path
from typing import Any

from agentkv.errors import SettingsError
from agentkv.events import DETAILS, JobEvent, Trimmed
from agentkv.policies.settings import Settings
from agentkv.protocol import JobKey
from agentkv.visible import visible

MAX_NEWEST = 2000
"""Events of a client, and of all, that are also kept in order of time."""
SCANNED_EACH = 16
"""Jobs looked at for each one that ended."""

Entry = dict[str, Any]
"""An event: its name, its time and its details."""


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
        self._jobs: OrderedDict[JobKey, deque[Entry]] = OrderedDict()
        self._by_client: dict[str, OrderedDict[JobKey, deque[Entry]]] = {}
        self.num_named: Counter[str] = Counter()
        """Jobs of different clients by the id that they share."""
        self._newest: defaultdict[str | None, deque[tuple[JobKey, Entry]]]
        self._newest = defaultdict(partial(deque, maxlen=MAX_NEWEST))
        """The last events that are kept, with their jobs: by client, and of all (None)."""

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
            own = self._by_client.setdefault(key.client, OrderedDict())
            events = self._jobs.get(key)
            if events is None:
                events = self._jobs[key] = own[key] = deque()
                self.num_named[key.own_id] += 1
            events.append(entry)
            self._jobs.move_to_end(key)
            own.move_to_end(key)
            self._newest[None].append((key, entry))
            self._newest[key.client].append((key, entry))
            self._num_events += 1
            if self._num_events > self._max_events:
                self._drop_oldest()

    def on_trimmed(self, event: Trimmed) -> None:
        """Add the first cut of a pin alone, since a decoding turn takes one block at a time; the
        `unpinned` event has the sum."""
        if event.pin.num_trimmed == event.blocks:
            self.on_event(event)

    def _drop_oldest(self) -> None:
        key, events = next(iter(self._jobs.items()))
        if len(self._jobs) > 1:
            del self._jobs[key], self._by_client[key.client][key]
            num_dropped, last = len(events), events[-1]
            self.num_named[key.own_id] -= 1
            if not self.num_named[key.own_id]:
                del self.num_named[key.own_id]
        else:
            num_dropped, last = 1, events.popleft()
        self._num_events -= num_dropped
        for client in (None, key.client):
            newest = self._newest[client]
            while newest and newest[0][1]["at_s"] <= last["at_s"]:
                newest.popleft()
        if not self._by_client[key.client]:
            del self._by_client[key.client], self._newest[key.client]

    def _of(self, client: str | None) -> OrderedDict[JobKey, deque[Entry]]:
        """The jobs of one client, or of all."""
        return self._jobs if client is None else self._by_client.get(client, OrderedDict())

    def counts(
        self, of_client: str | None = None, start: int = 0, most: int | None = None
    ) -> list[tuple[str, int]]:
        """Return the keys of jobs, of one client or of all, with their numbers of events: the last
        used first, `most` of them from the one at `start`."""
        jobs = self._of(of_client)
        stop = None if most is None else start + most
        return [(str(key), len(jobs[key])) for key in itertools.islice(reversed(jobs), start, stop)]

    def of_job(self, key: str) -> Sequence[Entry]:
        """The events of a job, oldest first; none if it is not remembered."""
        return self._jobs.get(JobKey.read(key), ())

    def named(self, own_id: str) -> list[JobKey]:
        """The jobs of all clients with this id, the last active first. O(clients)."""
        known = filter(self._jobs.__contains__, (JobKey(each, own_id) for each in self._by_client))
        return sorted(known, key=lambda key: -float(self._jobs[key][-1]["at_s"]))

    def last_of(self, key: str, most: int) -> Sequence[Entry]:
        """The last `most` events of a job, oldest first. O(most)."""
        return [*itertools.islice(reversed(self.of_job(key)), most)][::-1]

    def part(
        self,
        slices: Sequence[tuple[str, int, int]],
        since_s: float,
        viewer: str | None = None,
        name_of: Callable[[JobKey], str] = attrgetter("own_id"),
    ) -> dict[str, Any]:
        """Return the events in these slices (a job's key, start and stop) later than `since_s`, as
        `viewer` may see them, by the job's name."""
        jobs: dict[str, list[Entry]] = {}
        for text, start, stop in slices:
            key = JobKey.read(text)
            events = itertools.islice(self.of_job(key), start, stop)
            later = [shown(event, viewer) for event in events if event["at_s"] > since_s]
            jobs.setdefault(name_of(key), []).extend(later)
        return {"jobs": jobs}

    @property
    def now_s(self) -> float:
        """The time that an event of this moment would have."""
        return round(self._clock() - self._started_s, 6)

    def since(
        self, since_s: float, of_client: str | None, most: int
    ) -> tuple[list[tuple[JobKey, Entry]], int]:
        """The newest events later than `since_s` with their jobs' keys, in order of time; and how
        many were left out, as far as MAX_NEWEST events tell."""
        newest = self._newest.get(of_client, ())
        first = bisect_right(newest, since_s, key=lambda each: float(each[1]["at_s"]))
        num_left_out = max(0, len(newest) - first - most)
        later = itertools.islice(newest, first + num_left_out, None)
        return [(key, shown(entry, of_client)) for key, entry in later], num_left_out

    def ended(
        self, before_s: float, of_client: str | None, most: int
    ) -> list[tuple[JobKey, Entry]]:
        """How the `most` jobs ended that did so last before that time, oldest first, as far as
        the last SCANNED_EACH jobs for each of them tell."""
        jobs = itertools.islice(reversed(self._of(of_client).items()), SCANNED_EACH * most)
        last = ((key, events[-1]) for key, events in jobs if events[-1]["at_s"] <= before_s)
        closed = ((key, entry) for key, entry in last if entry["event"] == "closed")
        return [*itertools.islice(closed, most)][::-1]

    def as_dict(self) -> dict[str, Any]:
        """Return all events by job."""
        return self.part([(key, 0, number) for key, number in self.counts()[::-1]], -1.0)

    def close(self) -> None:
        """Write the rest of the file, if there is one."""
        if self._writer is not None:
            self._writer.close()


def shown(entry: Entry, viewer: str | None) -> Entry:
    """An event as plain data, as a client may see it (None: all): a miss names who took the KV."""
    miss = entry.get("miss")
    return entry if miss is None else {**entry, "miss": miss.as_dict(viewer)}


FILE_STEM = "scheduler_timestamps"
MAX_WAITING_EVENTS = 100_000
"""Events queued for a slow or full disk; further ones are dropped."""
RETRY_S = 5.0
"""Seconds between two attempts to write to a full disk."""

logger = logging.getLogger(__name__)


def create_file(folder: Path) -> FileIO:
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
            return FileIO(path, "a")
    raise AssertionError("unreachable")


class EventWriter:
    """A daemon thread that writes one line per event, and on a full disk waits for space.

    The first line of each file is `about`: what the server is.
    """

    def __init__(
        self, folder: Path, about: Mapping[str, object], *, retry_s: float = RETRY_S
    ) -> None:
        self._about = _line({"event": "server", "at_s": 0.0, **about})
        self._file = create_file(folder)
        self.path = Path(str(self._file.name))
        self._inode = self.path.stat().st_ino
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
            while (event := self._events.get()) is not None and self._write(_line(event)):
                pass
        self._file.close()

    def _write(self, line: bytes) -> bool:
        """Write a line; False if there is no space and the engine ends."""
        rest = line
        while rest:
            try:
                self.path.touch(mode=0o600)
                found = self.path.stat()
                if found.st_ino != self._inode:  # logs are rotated: it was renamed
                    self._file.close()
                    self._file, rest, self._inode = FileIO(self.path, "a"), line, found.st_ino
                if not found.st_size and rest is line:  # new, or rotated by emptying it
                    rest = self._about + line
                rest = rest[self._file.write(rest) :]
            except OSError as error:
                if not self._has_failed:
                    self._has_failed = True
                    logger.error("agentkv: the event log waits, %s: %s", self.path, error)
                if self._is_closing.wait(self._retry_s):
                    return False
        self._has_failed = False
        return True


def _line(event: Mapping[str, object]) -> bytes:
    return visible(json.dumps(event)).encode() + b"\n"


def open_writer(settings: Settings, about: Mapping[str, object]) -> EventWriter | None:
    """Return the writer for `run_output_dir`, or None if it is not set.

    Raises SettingsError if the folder cannot be written to.
    """
    if settings.run_output_dir is None:
        return None
    try:
        return EventWriter(Path(settings.run_output_dir), about)
    except OSError as error:
        raise SettingsError(
            f"--run-output-dir {settings.run_output_dir}: cannot write there ({error}); "
            "give a folder that can be written to"
        ) from error
