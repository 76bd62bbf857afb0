"""Work that must not hold up the engine's main thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

MAX_WAITING_TASKS = 1000
"""Tasks that may wait; a further one is refused."""

Task = Callable[[], None]


def call(task: Task) -> None:
    """Do a task whose errors are its caller's."""
    task()


class SideWork:
    """Does tasks in order: at once in the caller, or, once started, in a thread of its own.

    `guard` does a task and keeps its errors in. `wake` is for a task to call, from any thread, when
    it has something for the main thread. `do` never blocks once the thread runs.
    """

    def __init__(
        self, guard: Callable[[Task], None] = call, *, wake: Callable[[], None] = lambda: None
    ) -> None:
        self.wake = wake
        self._guard = guard
        self._tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """From now on tasks are done in a daemon thread."""
        assert self._thread is None
        self._thread = threading.Thread(target=self._run, name="agentkv-side-work", daemon=True)
        self._thread.start()

    def do(self, task: Task) -> bool:
        """Do a task, now or soon; False if too many are waiting."""
        if self._thread is None:
            self._guard(task)
        elif self._tasks.qsize() >= MAX_WAITING_TASKS:
            return False
        else:
            self._tasks.put(task)
        return True

    def finish(self, timeout_s: float) -> None:
        """Wait until all tasks given so far are done, for `timeout_s` at most."""
        is_done = threading.Event()
        if self.do(is_done.set):
            is_done.wait(timeout_s)

    def _run(self) -> None:
        while True:
            self._guard(self._tasks.get())
