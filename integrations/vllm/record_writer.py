"""Writes the timestamps record to a file as it grows, off the engine's main thread.

Not only at shutdown: with its default time-out of 0 s, vLLM kills the engine process right after
asking it to end (vllm/v1/utils.py, `shutdown`).
"""

from __future__ import annotations

import itertools
import json
import logging
import queue
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from .settings import Settings, SettingsError

FILE_STEM = "scheduler_timestamps"
MAX_WAITING_EVENTS = 100_000
"""Events that may wait for a slow disk; further ones are dropped."""

logger = logging.getLogger(__name__)


def create_file(folder: Path) -> TextIO:
    """Open a new JSON-lines file in `folder`, made if need be; never an existing one.

    The first free of scheduler_timestamps.jsonl, scheduler_timestamps_2.jsonl, ...: a second run
    or a second engine gets its own. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        name = FILE_STEM if number == 1 else f"{FILE_STEM}_{number}"
        try:
            return (folder / f"{name}.jsonl").open("x", encoding="utf-8")
        except FileExistsError:
            continue
    raise AssertionError("unreachable")


class RecordWriter:
    """A daemon thread that writes one line per event; `add` never blocks and never raises."""

    def __init__(self, folder: Path) -> None:
        self._file = create_file(folder)
        self.path = Path(self._file.name)
        self._events: queue.SimpleQueue[Mapping[str, object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="agentkv-record", daemon=True)
        self._thread.start()

    def add(self, event: Mapping[str, object]) -> None:
        """Hand over one event; it is on disk a moment later."""
        if self._thread.is_alive() and self._events.qsize() < MAX_WAITING_EVENTS:
            self._events.put(event)

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what is waiting, for `timeout_s` at most."""
        self._events.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            with self._file:
                while (event := self._events.get()) is not None:
                    self._file.write(json.dumps(event) + "\n")
                    if self._events.empty():
                        self._file.flush()
        except OSError as error:
            logger.error("agentkv: the timestamps record ends here, %s: %s", self.path, error)


def open_writer(settings: Settings) -> RecordWriter | None:
    """The writer for `run_output_dir`, None without one.

    Raises SettingsError if that folder cannot be written to.
    """
    if settings.run_output_dir is None:
        return None
    try:
        return RecordWriter(Path(settings.run_output_dir))
    except OSError as error:
        raise SettingsError(
            f"--run-output-dir {settings.run_output_dir}: cannot write there ({error}); "
            "give a folder that can be written to"
        ) from error
