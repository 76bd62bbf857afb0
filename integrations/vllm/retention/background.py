"""Does what takes milliseconds off the engine's main thread, clients in turn.

DurationService reads and predicts in it, MissWatcher decodes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable

MAX_WAITING_TASKS = 1000
"""Tasks that may wait for the background thread, of 16 KiB at most each."""

Task = Callable[[], None]


def _call(task: Task) -> None:
    task()


def _nothing() -> None:
    pass


class BackgroundWorker:
    """Does tasks: at once in the caller, or, once started, in a thread of its own.

    There clients take turns, one task each, so that none waits for all tasks of another. Those of
    one client are done in order. Of more than MAX_WAITING_TASKS the newest of the client that has
    most is dropped.
    """

    def __init__(
        self, guard: Callable[[Task], None] = _call, *, wake: Callable[[], None] = _nothing
    ) -> None:
        """`guard` runs a task and keeps its errors in. `wake` is for a task to call, from any
        thread, when it has something for the main thread."""
        self.wake = wake
        self._guard = guard
        self._lines: OrderedDict[str | None, deque[tuple[Task, Task]]] = OrderedDict()
        """Tasks of each client that has some, with what to call if one is dropped; the client whose
        turn is next first."""
        self._num_waiting = 0
        self._changed = threading.Condition()
        """Held to look at the two above, for microseconds."""
        self._thread: threading.Thread | None = None

    @property
    def is_started(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        """Do all further tasks in a daemon thread."""
        assert self._thread is None
        self._thread = threading.Thread(target=self._run, name="agentkv-background", daemon=True)
        self._thread.start()

    def do(self, task: Task, client: str | None = None, *, or_else: Task = _nothing) -> None:
        """Do a task of a client (None: the engine's own), now or soon.

        `or_else` is called in its stead if it is dropped, by this call or a later one. Never waits
        for a task once the thread runs; O(1), or O(clients) while too many tasks wait.
        """
        if self._thread is None:
            self._guard(task)
            return
        dropped = _nothing
        with self._changed:
            self._lines.setdefault(client, deque()).append((task, or_else))
            self._num_waiting += 1
            if self._num_waiting > MAX_WAITING_TASKS:
                # of equals the one that asks, or clients without number would drop each other's
                most = max(self._lines, key=lambda each: (len(self._lines[each]), each == client))
                _, dropped = self._lines[most].pop()
                self._taken_from(most)
            self._changed.notify()
        dropped()

    def _taken_from(self, client: str | None) -> None:
        self._num_waiting -= 1
        if not self._lines[client]:
            del self._lines[client]

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                client, line = next(iter(self._lines.items()))
                task, _ = line.popleft()
                self._lines.move_to_end(client)
                self._taken_from(client)
            self._guard(task)
