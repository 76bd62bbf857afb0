"""Keeps what the predictor learned in a file: loaded at start, written now and then.

Not only at shutdown: with its default time-out of 0 s, vLLM kills the engine process right after
asking it to end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from agentkv.durations import DurationPredictor

from .side_work import SideWork

CLOSING_S = 2.0
"""How long the end of the engine waits for the last write."""

logger = logging.getLogger(__name__)


class PredictorStore:
    """One engine's file; written as side work, which is where the predictor is at home."""

    def __init__(
        self,
        predictor: DurationPredictor,
        path: Path,
        side_work: SideWork,
        *,
        interval_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._predictor = predictor
        self._path = path
        self._side_work = side_work
        self._interval_s = interval_s
        self._clock = clock
        self._has_news = False
        self._next_s = clock() + interval_s
        if path.exists():
            predictor.load(path)

    def note_news(self) -> None:
        """Something was learned."""
        self._has_news = True

    @property
    def due_s(self) -> float | None:
        """When to write next; None while there is nothing new."""
        return self._next_s if self._has_news else None

    def save_if_due(self) -> None:
        """Have it written if it is time to and there is something new. O(1)."""
        if self._has_news and self._clock() >= self._next_s:
            self._save()

    def close(self) -> None:
        """Have written what is new, and wait for it, for CLOSING_S at most."""
        if self._has_news:
            self._save()
            self._side_work.finish(CLOSING_S)

    def _save(self) -> None:
        self._has_news = False
        self._next_s = self._clock() + self._interval_s
        self._side_work.do(self._write)

    def _write(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._predictor.save(self._path)
        except OSError as error:
            logger.error("agentkv: the predictor's state is not kept, %s: %s", self._path, error)
