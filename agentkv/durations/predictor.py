"""`DurationPredictor`: predicts how long a command or a tool call blocks, learns, and is saved."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import mkstemp
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from agentkv.commands import analyze_command
from agentkv.commands.blocking import Awaited, Call, awaited
from agentkv.durations.cells import CellEstimator
from agentkv.durations.context_serve import ContextServeEstimator
from agentkv.durations.prediction import A_PERSON, IN_BACKGROUND, Prediction, within
from agentkv.errors import InputError, not_among

logger = logging.getLogger(__name__)

_ESTIMATORS: Mapping[str, Callable[[], CellEstimator | ContextServeEstimator]] = {
    "default": CellEstimator,
    "context_serve": ContextServeEstimator,
}
KINDS = tuple(_ESTIMATORS)
"""agentkv's own predictor, and ContextServe's."""
MIN_DURATION_S, MAX_DURATION_S = 1e-3, 1e6
"""Durations are clipped to these; 0 and a billion seconds are no outliers of a fit."""
AT_LIMIT = 0.99  # of its limit: such a call counts as cut off by it
_FORMAT = 2
_CORRUPT = (OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError)


def _known(kind: str) -> str:
    if kind not in KINDS:
        raise InputError(f"predictor: {not_among(kind, KINDS)}")
    return kind


class PredictorSettings(BaseModel):
    """Settings of a server's predictor, frozen; every field has a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    predictor: str = "default"
    """What predicts, where the policy asks for it: one of KINDS."""
    predictor_state: str | None = None
    """File that keeps what the predictor learned; None: not kept."""
    predictor_save_s: float = Field(60.0, gt=0, le=86_400, allow_inf_nan=False)
    """Seconds between two writes of that file, while there is something new."""

    _is_known = field_validator("predictor")(_known)

    def of_engine(self, number: int) -> Self:
        """Return the settings of engine `number`, from 0: each has a state file of its own."""
        if self.predictor_state is None or number == 0:
            return self
        path = Path(self.predictor_state)
        own_path = path.with_name(f"{path.stem}-{number}{path.suffix}")
        return self.model_copy(update={"predictor_state": str(own_path)})


class DurationPredictor:
    """Predicts how long a bash command will run, and learns from the runs that it observes.

    `kind` is one of KINDS, `seed` is for predictors that draw at random: neither does. Memory is
    bounded. Not safe for concurrent use. Raises InputError, a ValueError, for an unknown kind.
    """

    def __init__(self, kind: str = "default", *, seed: int = 0) -> None:
        self.kind = _known(kind)
        self._start_afresh()

    def predict(self, call: str | Call | Awaited) -> Prediction:
        """Predict how long a command or a tool call will block, no longer than its limit.

        Of a command any text is fine; only its beginning is read. Of a call, as
        `agentkv.parse_tool_calls` gives it, the arguments count that send the command to the
        background or limit it. Raises TypeError for anything else.
        """
        text, limit_s, asks_person = awaited(call)
        command = analyze_command(text)
        if limit_s == 0:
            return IN_BACKGROUND
        if asks_person and not command.programs:
            return A_PERSON
        found = self._estimator.predict(command)
        return found if limit_s is None else within(found, limit_s)

    def observe(
        self, call: str | Call | Awaited, duration_s: float, *, censored: bool = False
    ) -> None:
        """Learn that it blocked for `duration_s` seconds, or, if `censored`, for at least that.

        A call that came back at its limit counts as longer; one in the background, or that a
        person is asked for, teaches nothing. Raises ValueError for a duration that is negative,
        infinite or not a number.
        """
        if not (math.isfinite(duration_s) and duration_s >= 0):
            raise ValueError(f"duration_s must be a finite number >= 0, got {duration_s!r}")
        text, limit_s, asks_person = awaited(call)
        if limit_s == 0 or asks_person:
            return
        if limit_s is not None and duration_s >= AT_LIMIT * limit_s:
            duration_s, censored = min(duration_s, limit_s), True
        duration_s = min(max(duration_s, MIN_DURATION_S), MAX_DURATION_S)
        self._estimator.observe(analyze_command(text), duration_s, censored=censored)
        self.num_observed += 1

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was learned as JSON, replacing an existing file as a whole, or a link to one,
        whose target stays as it is. Raises OSError.

        The file is for its owner alone (mode 0600): a guess of a command can be confirmed by it.
        """
        path = Path(path)
        document = {"format": _FORMAT, "kind": self.kind, "num_observed": self.num_observed}
        # a new file of mode 0600, by a name that nobody can have prepared
        handle, unfinished = mkstemp(".partial", f"{path.name}.", path.parent)
        try:
            with open(handle, "w", encoding="utf-8") as file:
                # in pieces: a server's engine runs on between them
                json.dump(document | {"state": self._estimator.state()}, file)
                file.flush()
                os.fsync(handle)
            os.replace(unfinished, path)
        except BaseException:
            os.unlink(unfinished)  # the rest of the disk, if that is full
            raise

    def load(self, path: str | os.PathLike[str]) -> bool:
        """Replace what was learned by what `save` wrote; returns whether the file could be used.

        A file that is missing, corrupt or of another kind is a warning and a fresh start.
        """
        self._start_afresh()
        try:
            document = json.loads(Path(path).read_text("utf-8"))
            if document["format"] != _FORMAT or document["kind"] != self.kind:
                raise ValueError(f"it holds {document['kind']!r}, format {document['format']!r}")
            self._estimator.restore(document["state"])
            self.num_observed = int(document["num_observed"])
        except (*_CORRUPT, RecursionError) as error:
            why = f"not a state of predictor {self.kind!r} ({type(error).__name__}: {error})"
            logger.warning("%s: %s; starting with nothing learned", path, why)
            self._start_afresh()
            return False
        return True

    def _start_afresh(self) -> None:
        self.num_observed = 0
        self._estimator: CellEstimator | ContextServeEstimator = _ESTIMATORS[self.kind]()
