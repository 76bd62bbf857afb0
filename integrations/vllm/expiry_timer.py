"""Wakes an idle engine when the next pin expires."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class ExpiryTimer:
    """A daemon thread that calls `wake` once the earliest deadline has passed.

    Deadlines are seconds on `time.monotonic`. `set_deadline` takes a lock that is never held
    while waiting or waking, so the engine's main thread is not held up.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._deadline_s: float | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="agentkv-expiry", daemon=True).start()

    def set_deadline(self, deadline_s: float) -> None:
        """Wake at `deadline_s` at the latest; a later deadline than the one set is ignored."""
        with self._changed:
            if self._deadline_s is None or deadline_s < self._deadline_s:
                self._deadline_s = deadline_s
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._deadline_s is None or self._deadline_s > time.monotonic():
                    self._changed.wait(
                        None if self._deadline_s is None else self._deadline_s - time.monotonic()
                    )
                self._deadline_s = None
            self._wake()
