"""Keeps what the predictor learned in a file: loaded at start, written now and then.

Not only at shutdown: with its default time-out of 0 s, vLLM kills the engine process right after
asking it to end.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkv.durations import DurationPredictor

from .context_serve import ContextServePolicy
from .continuum import ContinuumPolicy
from .side_work import SideWork

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Frozen:
    """Stands in for an estimator whose state was taken."""

    taken: dict[str, Any]

    def state(self) -> dict[str, Any]:
        return self.taken


class PredictorStore:
    """One engine's file. The state is taken on the main thread and written as side work."""

    def __init__(
        self,
        predictor: DurationPredictor,
        path: Path,
        side_work: SideWork,
        *,
        interval_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._predictor: Any = predictor
        self._path = path
        self._side_work = side_work
        self._interval_s = interval_s
        self._clock = clock
        if path.exists():
            predictor.load(path)
        self._num_saved = predictor.num_observed
        self._next_s = clock() + interval_s

    @property
    def due_s(self) -> float | None:
        """When to write next; None while there is nothing new."""
        return None if self._predictor.num_observed == self._num_saved else self._next_s

    def save_if_due(self) -> None:
        """Write if it is time to and there is something new. O(1) if not."""
        due_s = self.due_s
        if due_s is not None and self._clock() >= due_s:
            taken = self._take()
            self._side_work.run(lambda: self._write(taken))

    def close(self) -> None:
        """Write what is new, in the caller: it waits for the disk."""
        if self.due_s is not None:
            self._write(self._take())

    def _take(self) -> DurationPredictor:
        self._num_saved = self._predictor.num_observed
        self._next_s = self._clock() + self._interval_s
        taken: DurationPredictor = copy.copy(self._predictor)
        taken._estimator = _Frozen(self._predictor._estimator.state())  # type: ignore[assignment]
        return taken

    def _write(self, taken: DurationPredictor) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            taken.save(self._path)
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
    return PredictorStore(
        policy.predictor,
        path_of_engine(path, engine),
        side_work,
        interval_s=policy.settings.predictor_save_s,
        clock=clock,
    )


def path_of_engine(path: str, engine: int) -> Path:
    """The file of one of several engines: each but the first has its number before the suffix."""
    whole = Path(path)
    return whole if engine == 0 else whole.with_name(f"{whole.stem}-{engine}{whole.suffix}")
