"""The timestamps record: what happened to each job, in order, bounded in memory."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from .record_writer import RecordWriter

MAX_COMMAND_CHARS = 512
"""Characters kept of a tool's command: with a client's longest, events would be 16 KiB each."""


class TimestampRecord:
    """Events per job, each with the seconds since the engine started on a monotonic clock.

    At most `max_events` events in all, about 400 bytes each and 3 KiB with the longest text; beyond
    that the job recorded to longest ago is dropped whole. A writer, if given, gets every event.
    """

    def __init__(
        self,
        *,
        max_events: int,
        clock: Callable[[], float],
        writer: RecordWriter | None = None,
    ) -> None:
        self._writer = writer
        self._max_events = max_events
        self._clock = clock
        self._started_s = clock()
        self._num_events = 0
        self._jobs: OrderedDict[str, deque[dict[str, Any]]] = OrderedDict()

    def add(self, job_id: str, event: str, **details: object) -> None:
        if not self._max_events and self._writer is None:
            return
        at_s = round(self._clock() - self._started_s, 6)
        entry = {"event": event, "at_s": at_s, **details}
        if self._writer is not None:
            self._writer.add({"job_id": job_id, **entry})
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

    def as_dict(self) -> dict[str, Any]:
        return {"jobs": {job_id: list(events) for job_id, events in self._jobs.items()}}

    def close(self) -> None:
        """Finish the file, if there is one."""
        if self._writer is not None:
            self._writer.close()
