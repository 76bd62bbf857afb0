"""Owns the duration predictor: reads replies, predicts, learns and saves, all as side work.

Predicting takes 0.2 ms, and reading a reply or a hostile command takes more: none of it is done
between two steps. Answers come back through `take`, in the order of the questions. Knows nothing
of jobs, pins or vLLM.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentkv.commands import analyze_command
from agentkv.durations import DurationPredictor, Prediction
from agentkv.tool_calls import parse_tool_calls

from ..settings import Settings

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


# MERGED: Finds what a finished turn's reply runs: from its tokens to a command.
# MERGED: Knows nothing of jobs, pins or vLLM.

MAX_REPLY_TOKENS = 8192
"""Tokens of a reply that are decoded, from its end, where the tool calls are."""
MAX_REPLY_CHARS = 4 * MAX_REPLY_TOKENS
"""Characters of it that are parsed, from its end: an ordinary token has four."""

Decode = Callable[[list[int]], str]
"""Makes text of tokens, special ones included."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The last tokens of a reply; `stop_token_id` is the one that ended it, None if none did."""

    request_id: str
    token_ids: list[int]
    stop_token_id: int | None = None


def reply_text(reply: Reply, decode: Decode) -> str:
    """The end of a reply as text.

    A stop token is text too, since some dialects end a call with one; it gets a line of its own,
    since after a closing fence nothing else may stand.
    """
    text = decode(reply.token_ids)
    if reply.stop_token_id is not None:
        text += "\n" + decode([reply.stop_token_id])
    return text[-MAX_REPLY_CHARS:]


def command_in(text: str) -> str | None:
    """The commands of a reply's tool calls, one a line; a tool that runs none gives its name.

    Half of a surrogate pair, which JSON may spell (`\\ud83d`), becomes a question mark: no message
    can carry it.
    """
    calls = (call.command or call.name for call in parse_tool_calls(text))
    command = "\n".join(call for call in calls if call)
    return command.encode(errors="replace").decode() or None


# MERGED: Keeps what the predictor learned in a file: loaded at start, written now and then.
# MERGED: Not only at shutdown: with its default time-out of 0 s, vLLM kills the engine process
# MERGED: right after
# MERGED: asking it to end.

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


# MERGED: Work that must not hold up the engine's main thread.

MAX_WAITING_TASKS = 1000
"""Tasks that may wait; a further one is refused."""

Task = Callable[[], None]


def call(task: Task) -> None:
    """Do a task whose errors are its caller's."""
    task()


class SideWork:
    """Does tasks in order: at once in the caller, or, once started, in a thread of its own.

    `guard` does a task and keeps its errors in. `wake` is for a task to call, from any thread, when
    it has something for the main thread. `do` never blocks once the thread runs.
    """

    def __init__(
        self, guard: Callable[[Task], None] = call, *, wake: Callable[[], None] = lambda: None
    ) -> None:
        self.wake = wake
        self._guard = guard
        self._tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """From now on tasks are done in a daemon thread."""
        assert self._thread is None
        self._thread = threading.Thread(target=self._run, name="agentkv-side-work", daemon=True)
        self._thread.start()

    def do(self, task: Task) -> bool:
        """Do a task, now or soon; False if too many are waiting."""
        if self._thread is None:
            self._guard(task)
        elif self._tasks.qsize() >= MAX_WAITING_TASKS:
            return False
        else:
            self._tasks.put(task)
        return True

    def finish(self, timeout_s: float) -> None:
        """Wait until all tasks given so far are done, for `timeout_s` at most."""
        is_done = threading.Event()
        if self.do(is_done.set):
            is_done.wait(timeout_s)

    def _run(self) -> None:
        while True:
            self._guard(self._tasks.get())
