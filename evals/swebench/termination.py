"""A signal to terminate as what Ctrl-C is, so that what we started does not outlive us."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_by_terminate() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt; elsewhere than in the main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
