"""`DurationPredictor`: one interface over the predictors, chosen by name, and their saved state.

Users, the vLLM plugin and the studies predict through it. It knows nothing of how a predictor
predicts.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

from agentkv.commands import CommandAnalysis, analyze_command
from agentkv.commands.blocking import Awaited, Call, awaited
from agentkv.durations.backoff import BackoffEstimator
from agentkv.durations.context_serve import (
    BayesEstimator,
    BoostedEstimator,
    ContextServeEstimator,
    RulesEstimator,
)
from agentkv.durations.prediction import (
    ANY_COMMAND,
    FAST_S,
    IN_BACKGROUND,
    SLOW_S,
    AnyDistribution,
    Distribution,
    Prediction,
    Predictor,
    Speed,
    within,
)
from agentkv.durations.trees import OfflineModels
from agentkv.guard import AnswerCheck, FaultReport, Guard, was_signalled
from agentkv.named_classes import NamedClasses, label_of

logger = logging.getLogger(__name__)

_SHIPPED: Mapping[str, Callable[[OfflineModels], Predictor]] = {
    "default": lambda models: BackoffEstimator(models.prior),
    "context_serve": lambda models: ContextServeEstimator(models.boosted),
    "rules": lambda _: RulesEstimator(),
    "bayes": lambda _: BayesEstimator(),
    "boosted": lambda models: BoostedEstimator(models.boosted),
}
KINDS = tuple(_SHIPPED)
"""Names of the predictors that agentkv brings."""
_CLASSES = NamedClasses("predictor", Predictor, "agentkv.predictors", KINDS)
MIN_DURATION_S = 1e-3
MAX_DURATION_S = 1e6
"""Durations are clipped to these; 0 and a billion seconds are no outliers of a fit."""
AT_LIMIT = 0.99  # of its limit: such a call counts as cut off by it
_FORMAT = 1
_open_for_owner = partial(os.open, mode=0o600)
_CORRUPT = (OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError)


def predictor_names() -> list[str]:
    """Return the names of the shipped predictors, then of those that installed packages offer."""
    return _CLASSES.names()


def load_predictor(name: str) -> type[Predictor] | None:
    """Return the class that FILE.py, a module or an entry point names; None for a shipped one.

    Raises InputError, a ValueError, for a name that leads to no predictor; errors of the
    predictor's own module are raised as InputError too, with the original as its cause.
    """
    return None if name in KINDS else _CLASSES.load(name)


class PredictorSettings(BaseModel):
    """Settings of a server's predictor, frozen; every field has a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    predictor: str = "default"
    """What predicts, where the policy asks for it: one of KINDS or the name of your own."""
    predictor_state: str | None = None
    """File that keeps what the predictor learned; None: not kept."""
    predictor_save_s: float = Field(60.0, gt=0, le=86_400, allow_inf_nan=False)
    """Seconds between two writes of that file, while there is something new."""
    predictor_per_client: bool = False
    """Each client has its own predictor, which the others' commands teach nothing. All start with
    what `predictor_state` holds, and nothing is written."""

    @field_validator("predictor")
    @classmethod
    def _is_known(cls, name: str) -> str:
        load_predictor(name)
        return name

    def of_engine(self, number: int) -> Self:
        """Return the settings of engine `number`, from 0: each has a state file of its own."""
        if self.predictor_state is None or number == 0:
            return self
        path = Path(self.predictor_state)
        own_path = path.with_name(f"{path.stem}-{number}{path.suffix}")
        return self.model_copy(update={"predictor_state": str(own_path)})


class DurationPredictor:
    """Predicts how long a bash command will run, and learns from the runs that it observes.

    `kind` is one of KINDS (our own predictor, "default", ContextServe's, or one of its layers) or
    names a predictor of your own: FILE.py:CLASS, MODULE:CLASS, or an entry point. `seed` is for
    predictors that draw at random: none of these does. Memory is bounded. Not safe for concurrent
    use. Raises ValueError for an unknown kind.
    """

    def __init__(
        self,
        kind: str = "default",
        *,
        seed: int = 0,
        models: OfflineModels | None = None,
        on_fault: FaultReport | None = None,
    ) -> None:
        """With `on_fault`, which is given each fault, a predictor of your own is guarded: where it
        fails, the default one answers. Else its errors are raised."""
        self._own_class = load_predictor(kind)
        self.kind = label_of(kind)
        self._initial_models = models or OfflineModels.shipped()
        self._on_fault = on_fault
        self._start_afresh(self._initial_models)

    def predict(self, call: str | Call | Awaited) -> Prediction:
        """Predict how long a command or a tool call will block, no longer than its limit.

        Of a command any text is fine; only its beginning is read. Of a call, as
        `agentkv.parse_tool_calls` gives it, the arguments count that send the command to the
        background or limit it. Raises TypeError for anything else.
        """
        text, limit_s = awaited(call)
        command = analyze_command(text)
        if limit_s == 0:
            return IN_BACKGROUND
        found = self._predictor.predict(command)
        return found if limit_s is None else within(found, limit_s)

    def observe(
        self, call: str | Call | Awaited, duration_s: float, *, censored: bool = False
    ) -> None:
        """Learn that it blocked for `duration_s` seconds, or, if `censored`, for at least that.

        A call that came back at its limit counts as longer; one in the background teaches nothing.
        Raises ValueError for a duration that is negative, infinite or not a number.
        """
        if not (math.isfinite(duration_s) and duration_s >= 0):
            raise ValueError(f"duration_s must be a finite number >= 0, got {duration_s!r}")
        text, limit_s = awaited(call)
        if limit_s == 0:
            return
        if limit_s is not None and duration_s >= AT_LIMIT * limit_s:
            duration_s, censored = min(duration_s, limit_s), True
        duration_s = min(max(duration_s, MIN_DURATION_S), MAX_DURATION_S)
        self._predictor.observe(analyze_command(text), duration_s, censored=censored)
        self.num_observed += 1

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was learned as JSON, replacing an existing file as a whole. Raises OSError.

        The file is for its owner alone (mode 0600), since it holds commands.
        Models other than the shipped ones, such as `agentkv train-predictor` trains, go with it.
        """
        path = Path(path)
        document: dict[str, Any] = {
            "format": _FORMAT,
            "kind": self.kind,
            "num_observed": self.num_observed,
            "state": self._predictor.state(),
        }
        if self._models is not OfflineModels.shipped():
            document["models"] = self._models.to_dict()
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.partial")
        try:
            with open(unfinished, "w", encoding="utf-8", opener=_open_for_owner) as file:
                # in pieces: a server's engine runs on between them
                json.dump(document, file)
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)  # the rest of the disk, if that is full
            raise

    def load(self, path: str | os.PathLike[str]) -> bool:
        """Replace what was learned by what `save` wrote; returns whether the file could be used.

        A file that is missing, corrupt or of another kind is a warning and a fresh start.
        """
        try:
            self._restore(json.loads(Path(path).read_text("utf-8")))
        except (*_CORRUPT, RecursionError) as error:
            logger.warning(
                "%s: not a state of predictor %r (%s: %s); starting with nothing learned",
                path,
                self.kind,
                type(error).__name__,
                error,
            )
            self._start_afresh(self._initial_models)
            return False
        return True

    def copy(self) -> DurationPredictor:
        """Return a predictor that starts with what this one has learned, and learns for itself."""
        twin = copy.copy(self)
        twin._start_afresh(self._models)
        if self.num_observed:
            twin._predictor.restore(self._predictor.state())
            twin.num_observed = self.num_observed
        return twin

    def _start_afresh(self, models: OfflineModels) -> None:
        self.num_observed = 0
        self._models = models
        if self._own_class is None:
            self._predictor = _SHIPPED[self.kind](models)
        elif self._on_fault is None:
            self._predictor = self._own_class()
        else:
            default = _SHIPPED["default"](models)
            self._predictor = GuardedPredictor(self._own_class(), default, self._on_fault)

    def _restore(self, document: dict[str, Any]) -> None:
        if document["format"] != _FORMAT or document["kind"] != self.kind:
            raise ValueError(f"it holds {document['kind']!r}, format {document['format']!r}")
        models = self._initial_models
        if "models" in document:
            models = OfflineModels.from_dict(document["models"])
        self._start_afresh(models)
        self._predictor.restore(document["state"])
        if not isinstance(document["num_observed"], int):
            raise TypeError(f"num_observed is {document['num_observed']!r:.20}")
        self.num_observed = document["num_observed"]


def _is_prediction(answer: Prediction, args: tuple[Any, ...]) -> bool:
    times_s = (answer.p50_s, answer.p90_s, answer.ttl_s)
    texts = (answer.source, answer.explanation)
    return (
        answer.speed in get_args(Speed)
        and callable(answer.distribution.quantile_s)
        and all(isinstance(each, int | float) and 0 <= each < math.inf for each in times_s)
        and all(isinstance(each, str) for each in texts)
        and all(_is_share(answer.p_over(each), args) for each in (FAST_S, SLOW_S))
    )


def _is_share(answer: float, args: tuple[Any, ...]) -> bool:
    return isinstance(answer, int | float) and 0 <= answer <= 1


def _is_json(answer: dict[str, Any], args: tuple[Any, ...]) -> bool:
    return bool(json.dumps(answer))


CHECKS: Mapping[str, AnswerCheck] = {
    "predict": AnswerCheck(Prediction, _is_prediction),
    "p_over": AnswerCheck(object, _is_share),
    "observe": AnswerCheck(),
    "state": AnswerCheck(dict, _is_json),
}
"""The questions that a predictor is asked, and what each answer must be."""


class GuardedPredictor(Predictor):
    """A predictor that answers as the default one does where it fails, or has failed too often.

    A late answer is used; one that never comes holds up all later ones, but no step of the engine.
    """

    def __init__(self, own: Predictor, default: Predictor, report: FaultReport) -> None:
        """`own` is asked as long as it answers; both learn. `report` is given each fault."""
        self.guard = Guard(own, report)
        self._default = default
        self._own = own
        self._predict = self._asking("predict", own.predict, default.predict)
        self._observe = self._asking("observe", own.observe, super().observe)
        self.state = self._asking("state", own.state, super().state)  # type: ignore[method-assign]

    def _asking(self, question: str, method: Any, stand_in: Any) -> Any:
        return self.guard.asking(question, method, stand_in, CHECKS[question])

    def predict(self, command: CommandAnalysis) -> Prediction:
        answer: Prediction = self._predict(command)
        own: Distribution = answer.distribution
        p_over = self._asking("p_over", own.p_over, ANY_COMMAND.p_over)
        return replace(answer, distribution=AnyDistribution(p_over, own.quantile_s))

    def observe(self, command: CommandAnalysis, duration_s: float, *, censored: bool) -> None:
        self._default.observe(command, duration_s, censored=censored)
        self._observe(command, duration_s, censored=censored)

    def restore(self, state: dict[str, Any]) -> None:
        """Raises ValueError for any error of the predictor's own."""
        try:
            self._own.restore(state)
        except BaseException as error:
            if was_signalled(error):
                raise
            raise ValueError(f"{type(error).__name__}: {error}") from error
