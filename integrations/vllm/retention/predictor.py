"""Reads replies, predicts how long their tools run, learns and saves, off the main thread.

Predicting takes 0.2 ms, and reading a reply or an adversarial command more: too long between two
steps. PinDecisions asks; answers come back through `take`, to each client in the order of its
questions.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from agentkv.commands import analyze_command, command_key
from agentkv.commands.blocking import Awaited, awaited
from agentkv.durations import DurationPredictor, Prediction
from agentkv.policies.settings import Settings
from agentkv.protocol import KEPT_COMMAND_CHARS
from agentkv.tool_calls import ToolCall, parse_tool_calls

from .background import BackgroundWorker

MAX_REPLY_TOKENS = 8192
"""Tokens of a reply that are decoded, from its end, where the tool calls are."""
MAX_REPLY_CHARS = 4 * MAX_REPLY_TOKENS
"""Characters of it that are parsed, from its end: an ordinary token has four."""
MAX_TAKEN = 4
"""Answers given at a time: deciding about a pin takes the main thread 25 to 40 microseconds."""

logger = logging.getLogger(__name__)

RequestKey = str | int
"""Names a question: the request id of a reply, or a number."""
Decode = Callable[[list[int]], str]
"""Turns tokens into text, special ones included."""
CommandSource = Literal["client", "reply"]


class ToolCommand(NamedTuple):
    """Says what a turn's tool calls run."""

    command: str
    """The commands, one a line; a tool without a command gives its name."""
    blocking: Awaited
    """What the agent waits for in them."""

    @classmethod
    def of(cls, calls: Iterable[tuple[str, Awaited]]) -> ToolCommand | None:
        """Commands that run in turn; None without any.

        Half of a surrogate pair, which JSON may spell (`\\ud83d`), becomes a question mark: no
        message can carry it.
        """
        calls = [call for call in calls if call[0]]
        if not calls:
            return None
        text = "\n".join(command for command, _ in calls)[:KEPT_COMMAND_CHARS]
        waits = [wait for _, wait in calls]
        # what runs in the background is waited for only where nothing else runs
        waits = [wait for wait in waits if wait.limit_s != 0] or waits
        limits_s = [wait.limit_s for wait in waits if wait.limit_s is not None]
        limit_s = sum(limits_s) if len(limits_s) == len(waits) else None
        asks_person = any(wait.asks_person for _, wait in calls)
        blocking = Awaited("\n".join(wait.text for wait in waits), limit_s, asks_person)
        return cls(text.encode(errors="replace").decode(), blocking)


@dataclass(frozen=True, slots=True)
class Reply:
    """Holds the last tokens of a reply, for the background thread to read."""

    token_ids: list[int]
    decode: Decode
    stop_token_id: int | None = None
    """The token that ended it; None if none did."""
    parse: Callable[[], Sequence[ToolCall]] = tuple
    """Gives its calls as the server's own parser finds them; none if the server has none."""

    def tool_command(self) -> ToolCommand | None:
        """Return what it runs: what the server gives its client, else what our dialects find."""
        calls = self.parse() or parse_tool_calls(self.text())
        return ToolCommand.of([(call.command or call.name, awaited(call)) for call in calls])

    def text(self) -> str:
        """Its end as text.

        A stop token is text too, since some dialects end a call with one. It gets a line of its
        own, since nothing may follow a closing fence.
        """
        text = self.decode(self.token_ids)
        if self.stop_token_id is not None:
            text += "\n" + self.decode([self.stop_token_id])
        return text[-MAX_REPLY_CHARS:]


@dataclass(frozen=True, slots=True)
class ReadReply:
    """Answers what runs (None: nothing, or not known) and how long it will take."""

    key: RequestKey
    told_by: CommandSource
    command: str | None = None
    command_key: str = ""
    """What may be shown of it: finding that takes as long as ten decisions."""
    blocking: Awaited | None = None
    prediction: Prediction | None = None


class DurationService:
    """Keeps one engine's predictor. Called on the main thread, which it never blocks.

    With `predictor_state` it loads that file at start and writes it every `predictor_save_s`. Not
    at shutdown: with its default time-out of 0 s, vLLM kills the engine process at once.
    """

    def __init__(
        self,
        settings: Settings,
        worker: BackgroundWorker,
        clock: Callable[[], float],
        *,
        predicts: bool = True,
    ) -> None:
        """`worker` does all reading, predicting, learning and writing. If it does not predict,
        answers have the command alone."""
        self.predictor = DurationPredictor(settings.predictor) if predicts else None
        """Used by the worker alone."""
        self.predicts = predicts
        self._worker = worker
        self._clock = clock
        self.answers: deque[ReadReply] = deque()
        path = None if settings.predictor_state is None else Path(settings.predictor_state)
        self._path = path if predicts else None
        """Where to save."""
        self._save_every_s = settings.predictor_save_s
        self._has_news = False
        self._next_save_s = clock() + settings.predictor_save_s
        self._is_foreign = False
        """The file holds something else, which must not be lost."""
        self._has_failed = False
        if self.predictor is not None and path is not None and path.exists():
            self._is_foreign = not self.predictor.load(path)

    def ask(
        self,
        key: RequestKey,
        told_by: CommandSource,
        read: Callable[[], ToolCommand | None],
        client: str = "",
        *,
        is_awaited: Callable[[RequestKey], bool] = lambda _: True,
    ) -> None:
        """Ask what runs, and for how long: `read` gives that, None if there is nothing.

        `read` and `is_awaited` are called in the worker's thread: an answer that nobody awaits any
        more is not looked for.
        """

        def answer() -> None:
            found = read() if is_awaited(key) else None
            result = ReadReply(key, told_by)
            if found is not None:
                command = _read_part(found.command)
                blocking = found.blocking._replace(text=_read_part(found.blocking.text))
                prediction = None if self.predictor is None else self.predictor.predict(blocking)
                shown = command_key(command)
                result = ReadReply(key, told_by, command, shown, blocking, prediction)
            self.answers.append(result)
            self._worker.wake()

        def refuse() -> None:
            self.answers.append(ReadReply(key, told_by))

        self._worker.do(answer, client, or_else=refuse)

    def take(self) -> Iterator[ReadReply]:
        """Yield the next MAX_TAKEN of the answers that have come in, oldest first, each once.

        If more are left, the main thread is woken for them. O(1) if there are none.
        """
        for _ in range(min(len(self.answers), MAX_TAKEN)):
            yield self.answers.popleft()
        if self.answers:
            self._worker.wake()

    def observe(self, ran: Awaited, duration_s: float, client: str = "") -> None:
        """Learn how long a client's agent waited."""
        predictor = self.predictor
        if predictor is None:
            return
        ran = ran._replace(text=ran.text[:KEPT_COMMAND_CHARS])

        def learn() -> None:
            part = ran._replace(text=_read_part(ran.text))
            predictor.observe(part, duration_s)
            if self._path is not None and not self._has_news:
                self._has_news = True
                self._worker.wake()

        self._worker.do(learn, client)

    @property
    def next_save_s(self) -> float | None:
        """Return when to write the state next; None while there is nothing new, or no file."""
        return self._next_save_s if self._has_news else None

    def save_if_due(self) -> None:
        """Have the state written if it is time to. O(1)."""
        if self._has_news and self._clock() >= self._next_save_s:
            self._has_news = False
            self._next_save_s = self._clock() + self._save_every_s
            self._worker.do(self._write)

    def _write(self) -> None:
        assert self._path is not None
        assert self.predictor is not None
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._is_foreign:
                names = (f"{self._path}.kept{n or ''}" for n in itertools.count())
                self._path.rename(next(name for name in names if not Path(name).exists()))
                self._is_foreign = False
            self.predictor.save(self._path)
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                logger.error(
                    "agentkv: the predictor's state is not kept, %s: %s", self._path, error
                )


def _read_part(command: str) -> str:
    """Return the part of a command that predictors read, without long here-documents."""
    return analyze_command(command[:KEPT_COMMAND_CHARS]).text
