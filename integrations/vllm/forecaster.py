"""Owns the duration predictor: reads replies, predicts, learns and saves, all as side work.

Predicting takes 0.2 ms, and reading a reply or a hostile command takes more: none of it is done
between two steps. Answers come back through `take`, in the order of the questions. Knows nothing
of jobs, pins or vLLM.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentkv.commands import analyze_command
from agentkv.durations import DurationPredictor, Prediction

from .predictor_store import PredictorStore
from .reply_reader import Decode, Reply, command_in, reply_text
from .settings import Settings
from .side_work import SideWork

MAX_READ_CHARS = 16 * 1024
"""Characters of a command that are looked at; of those, the analysis keeps the part it reads."""

Ticket = str | int
"""Names a question: the request of a reply, or a number."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What runs, None for nothing or not known, and how long it will take."""

    ticket: Ticket
    told_by: Literal["client", "reply"]
    command: str | None = None
    prediction: Prediction | None = None


class Forecaster:
    """One engine's. Called on the main thread, and never blocks it."""

    def __init__(
        self, settings: Settings, side_work: SideWork, *, clock: Callable[[], float]
    ) -> None:
        self.predictor = DurationPredictor(settings.predictor)
        self._side_work = side_work
        self._answers: deque[Forecast] = deque()
        self._store: PredictorStore | None = None
        if settings.predictor_state is not None:
            self._store = PredictorStore(
                self.predictor,
                Path(settings.predictor_state),
                side_work,
                interval_s=settings.predictor_save_s,
                clock=clock,
            )

    def ask_of_reply(self, reply: Reply, decode: Decode) -> None:
        """What does this reply run, and for how long? Its request is the ticket."""

        def read() -> str | None:
            return command_in(reply_text(reply, decode))

        self._ask(reply.request_id, "reply", read)

    def ask_of_command(self, ticket: Ticket, command: str) -> None:
        """How long will this command take?"""
        self._ask(ticket, "client", lambda: command)

    def _ask(
        self, ticket: Ticket, told_by: Literal["client", "reply"], read: Callable[[], str | None]
    ) -> None:
        def answer() -> None:
            command = read()
            forecast = Forecast(ticket, told_by)
            if command is not None:
                command = _read_part(command)
                forecast = Forecast(ticket, told_by, command, self.predictor.predict(command))
            self._answers.append(forecast)
            self._side_work.wake()

        if not self._side_work.do(answer):
            self._answers.append(Forecast(ticket, told_by))

    def take(self) -> Iterator[Forecast]:
        """The answers that are there, oldest first, each once. O(1) if there are none."""
        while self._answers:
            yield self._answers.popleft()

    def observe(self, command: str, duration_s: float, *, is_lower_bound: bool = False) -> None:
        """Learn how long a command took, or took at least."""
        command = command[:MAX_READ_CHARS]
        self._side_work.do(
            lambda: self.predictor.observe(_read_part(command), duration_s, censored=is_lower_bound)
        )
        if self._store is not None:
            self._store.note_news()

    def save_if_due(self) -> None:
        """Have written what was learned if it is time to. O(1)."""
        if self._store is not None:
            self._store.save_if_due()

    @property
    def next_save_s(self) -> float | None:
        """When there will be something to write; None while there is nothing new."""
        return None if self._store is None else self._store.due_s

    def close(self) -> None:
        """Write what was learned, before the engine ends."""
        if self._store is not None:
            self._store.close()


def _read_part(command: str) -> str:
    """The part of a command that predictors read, 2 KiB at most: long here-documents cut out."""
    return analyze_command(command[:MAX_READ_CHARS]).text


def open_forecaster(
    settings: Settings, side_work: SideWork, *, clock: Callable[[], float]
) -> Forecaster | None:
    """The forecaster of a policy that predicts; None for one that does not."""
    return Forecaster(settings, side_work, clock=clock) if settings.predicts else None
