"""Work that must not hold up the engine's main thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

MAX_WAITING_TASKS = 1000
"""Tasks that may wait; a further one is refused."""

Task = Callable[[], None]


class SideWork:
    """Runs tasks in order: at once in the caller, or, once started, in a thread of its own.

    `guard` calls a task and keeps its errors in. `run` never blocks once the thread runs.
    """

    def __init__(self, guard: Callable[[Task], None]) -> None:
        self._guard = guard
        self._tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """From now on tasks run in a daemon thread."""
        assert self._thread is None
        self._thread = threading.Thread(target=self._work, name="agentkv-side-work", daemon=True)
        self._thread.start()

    def run(self, task: Task) -> bool:
        """Run a task, now or soon; False if too many are waiting."""
        if self._thread is None:
            self._guard(task)
        elif self._tasks.qsize() >= MAX_WAITING_TASKS:
            return False
        else:
            self._tasks.put(task)
        return True

    def _work(self) -> None:
        while True:
            self._guard(self._tasks.get())
