"""Keeps what the predictor learned in a file: loaded at start, written now and then.

Not only at shutdown: with its default time-out of 0 s, vLLM kills the engine process right after
asking it to end. Taking the state of a full predictor takes 50 ms, too long between two steps: a
replica, which learns the same as side work, is what is written.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from agentkv.durations import DurationPredictor

from .context_serve import ContextServePolicy
from .continuum import ContinuumPolicy
from .side_work import SideWork

CLOSING_S = 2.0
"""How long the end of the engine waits for the last write."""

logger = logging.getLogger(__name__)


class PredictorStore:
    """One engine's file. All but the side work is done on the main thread, in O(1)."""

    def __init__(
        self,
        predictor: DurationPredictor,
        path: Path,
        side_work: SideWork,
        *,
        interval_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._replica = DurationPredictor(predictor.kind)
        self._path = path
        self._side_work = side_work
        self._interval_s = interval_s
        self._clock = clock
        self._has_news = False
        self._next_s = clock() + interval_s
        if path.exists() and predictor.load(path):
            self._replica.load(path)

    def observed(self, command: str, duration_s: float, is_lower_bound: bool) -> None:
        """The predictor has learned this."""
        self._has_news = True
        self._side_work.run(
            lambda: self._replica.observe(command, duration_s, censored=is_lower_bound)
        )

    @property
    def due_s(self) -> float | None:
        """When to write next; None while there is nothing new."""
        return self._next_s if self._has_news else None

    def save_if_due(self) -> None:
        """Have it written if it is time to and there is something new."""
        if self._has_news and self._clock() >= self._next_s:
            self._has_news = False
            self._next_s = self._clock() + self._interval_s
            self._side_work.run(self._write)

    def close(self) -> None:
        """Have written what is new, and wait for it, for CLOSING_S at most."""
        if self._has_news:
            is_written = threading.Event()
            self._side_work.run(self._write)
            self._side_work.run(is_written.set)
            is_written.wait(CLOSING_S)

    def _write(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._replica.save(self._path)
        except OSError as error:
            logger.error("agentkv: the predictor's state is not kept, %s: %s", self._path, error)


def open_store(
    policy: ContinuumPolicy, side_work: SideWork, *, engine: int, clock: Callable[[], float]
) -> PredictorStore | None:
    """The store that a policy's settings ask for; None under a policy without a predictor.

    Reads the file if there is one; `engine` is the number of this engine, from 0.
    """
    path = policy.settings.predictor_state
    if path is None or not isinstance(policy, ContextServePolicy):
        return None
    store = PredictorStore(
        policy.predictor,
        path_of_engine(path, engine),
        side_work,
        interval_s=policy.settings.predictor_save_s,
        clock=clock,
    )
    policy.on_observed = store.observed
    return store


def path_of_engine(path: str, engine: int) -> Path:
    """The file of one of several engines: each but the first has its number before the suffix."""
    whole = Path(path)
    return whole if engine == 0 else whole.with_name(f"{whole.stem}-{engine}{whole.suffix}")
