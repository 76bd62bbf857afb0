"""One agent job as the client sees it: its turns, its tools, its totals, and who hears of them.

A session makes it and ends it; `tagger` opens a turn of it for each request. It sends nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeVar, cast

from agentkv.client.patches import harmless
from agentkv.protocol import MAX_TOOL_CHARS, Tags, ToolEvent, parse_turn_count, routing_headers
from agentkv.tool_calls import ToolCall
from agentkv.tracing import JobTrace, RequestShape, Span

ClientT = TypeVar("ClientT")

SUMMARY_S = 1.0
"""Longest time for which a summary waits for what servers say of a job that is over."""
MAX_FAILED = 64
"""Failed turns that are remembered for their retries."""
TOKEN_COUNTS = (
    *("prompt_tokens", "hit_tokens", "output_tokens"),
    *("later_prompt_tokens", "later_hit_tokens"),
)
Listener = Callable[[str, Mapping[str, object]], threading.Event | None]
"""Reports a "tool" or the "release" of a job to a server, or to an engine of this process. Never
waits; the event is set when that is done."""


@dataclass(frozen=True, slots=True)
class JobSummary:
    """Totals of one job; `print(summary)` shows them as a small table.

    Turns and times are the client's own; times of overlapping turns, and of tools, add up. Token
    counts are the server's, which says them when the job ends: None until then, and where
    `no_tokens` says why they are missing. "Later" turns are all but the first.
    """

    job_id: str
    turns: int = 0
    failed_calls: int = 0
    llm_s: float = 0.0
    tool_calls: int = 0
    tool_s: float = 0.0
    prompt_tokens: int | None = None
    hit_tokens: int | None = None
    """Tokens of prompts that were in the cache."""
    output_tokens: int | None = None
    later_prompt_tokens: int | None = None
    later_hit_tokens: int | None = None
    no_tokens: str | None = None

    @property
    def hit_rate(self) -> float | None:
        """The share of later turns' prompts that was in the cache; None if it is not known."""
        if not self.later_prompt_tokens:
            return None
        return (self.later_hit_tokens or 0) / self.later_prompt_tokens

    def __str__(self) -> str:
        failed = f" ({self.failed_calls:,} failed calls)" if self.failed_calls else ""
        rows = {
            "job": self.job_id,
            "turns": f"{self.turns:,}{failed}",
            "LLM time": f"{self.llm_s:.2f} s",
            "tool time": f"{self.tool_s:.2f} s ({self.tool_calls:,} calls)",
        }
        if self.prompt_tokens is None:
            rows["tokens"] = self.no_tokens or "the server says them when the job has ended"
        else:
            rows["prompt tokens"] = f"{self.prompt_tokens:,}"
            rows["cached tokens"] = f"{self.hit_tokens or 0:,}"
            rows["output tokens"] = f"{self.output_tokens or 0:,}"
        if self.hit_rate is not None:
            rows["later turns"] = f"{self.hit_rate:.0%} of their prompts came from the cache"
        width = max(map(len, rows))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())


@dataclass(eq=False, repr=False)
class Job(Generic[ClientT]):
    """The job of `with agentkv.session(...) as job`; sessions make it.

    `client` is the client passed to the session, bound to this job in any thread or task; None if
    none was. All methods may be called from any thread or task.
    """

    job_id: str
    parent_job_id: str | None = None
    enclosing: Job[Any] | None = None
    covered_client: object = None
    """The httpx client whose requests are its turns; None: all that are made inside of it."""
    server_url: str | None = None
    on_missing_server: str = "warn"
    expected_turns: int | None = None
    affinity: str | None = None

    def __post_init__(self) -> None:
        self.client: ClientT = cast(Any, None)
        self.listeners: dict[Hashable, Listener] = {}
        self.trace: JobTrace | None = None
        self.routing_headers = routing_headers(self.job_id, self.affinity)
        self.last_turn: int | None = None
        """The number of the newest turn."""
        self.no_tokens: str | None = None
        """Why a server says nothing of its tokens."""
        self._process_id = os.getpid()
        self._is_ended = False
        self._releases: list[threading.Event | None] = []
        self._lock = threading.Lock()  # turns of a job may overlap
        self._totals: defaultdict[str, Any] = defaultdict(int)
        self._tokens: dict[str, Mapping[str, int]] = {}
        self._num_turns = 0  # answered or under way
        self._max_turns: int | None = None
        self._is_last_step = False
        self._longest_tool: tuple[float, str] | None = None
        self._failed: deque[TaggedTurn] = deque(maxlen=MAX_FAILED)

    @property
    def is_over(self) -> bool:
        """True after the session was left, and in a child process forked from inside it."""
        return self._is_ended or self._process_id != os.getpid()

    @property
    def headers(self) -> dict[str, str]:
        """Headers that make a request a turn of this job, sent by any library or program.

        The server numbers such turns. Name it by `session(server=...)`, so that it hears of the
        job's tools and its end.
        """
        return self._tags().as_headers() | self.routing_headers

    def last_step(self) -> None:
        """Declare the next request the last of this job: the server frees it with the reply."""
        self._is_last_step = True

    def limit_turns(self, num_turns: int) -> None:
        """Promise that the job takes at most `num_turns` turns: that turn is its last step.

        `expected_turns` of the session is only a hint. Raises TagError for a number out of range.
        """
        self.expected_turns = self._max_turns = parse_turn_count(num_turns, "num_turns")

    def tool(self, call: ToolCall | str) -> ToolRun:
        """Time a tool: `with job.tool(call):` around its run, or `async with`.

        call: what `agentkv.parse_tool_calls` gave, a command, or a tool's name. Its start and end
        are reported to the server in the background; the next turn carries the longest one.
        """
        return ToolRun(self, call)

    def summary(self) -> JobSummary:
        """The totals so far; the tokens are the server's, which says them when the job has ended.

        Waits for that for SUMMARY_S at most.
        """
        deadline_s = time.monotonic() + SUMMARY_S
        for is_done in filter(None, self._releases):
            is_done.wait(max(0.0, deadline_s - time.monotonic()))
        reason = self.no_tokens or ("no server has said them" if self._is_ended else None)
        with self._lock:
            said = list(self._tokens.values())
            tokens = {name: sum(each[name] for each in said) for name in TOKEN_COUNTS if said}
            no_tokens = None if said or reason is None else f"not known: {reason}"
            return JobSummary(self.job_id, no_tokens=no_tokens, **self._totals, **tokens)

    def begin_turn(
        self, request: Hashable = None, describe: Callable[[], RequestShape] | None = None
    ) -> TaggedTurn:
        """Open the next turn; it carries the longest tool run since the turn before.

        request: what is the same in a retry. A failed turn's number is for its retry alone: the
        server takes a repeated number for one. describe: called where spans are wanted.
        """
        with self._lock:
            retried = next((turn for turn in self._failed if turn.request == request), None)
            if retried is not None:
                self._failed.remove(retried)
            else:
                self.last_turn = (self.last_turn or 0) + 1
            self._num_turns += 1
            is_last_step = self._is_last_step or self._num_turns == self._max_turns
            last_tool_s, last_tool = self._longest_tool or (None, None)
            tags = self._tags(
                is_last_step=is_last_step or None,
                turn=self.last_turn if retried is None else retried.tags.turn,
                last_tool=last_tool,
                last_tool_s=last_tool_s,
            )
            self._is_last_step, self._longest_tool = False, None
        turn = TaggedTurn(self, request, tags)
        if self.trace is not None and describe is not None:
            turn.span = self.trace.turn(tags.turn or 0, describe())
        return turn

    def _tags(self, **of_turn: Any) -> Tags:
        return Tags(
            job_id=self.job_id,
            parent_job_id=self.parent_job_id,
            expected_turns=self.expected_turns,
            **of_turn,
        )

    def end_turn(self, turn: TaggedTurn, *, is_answered: bool) -> None:
        """Count a turn; without an answer, the next request carries what this one has carried."""
        with self._lock:
            if is_answered:
                self._totals["turns"] += 1
                self._totals["llm_s"] += time.monotonic() - turn.started_at_s
            else:
                self._totals["failed_calls"] += 1
                self._num_turns -= 1
                self._failed.append(turn)
                self._is_last_step = self._is_last_step or bool(turn.tags.is_last_step)
                if turn.tags.last_tool is not None:
                    self._note_tool(turn.tags.last_tool, turn.tags.last_tool_s or 0.0)
        if is_answered and self.is_over:  # this turn was pinned after the job's release
            self.release()

    def end_tool(self, text: str, duration_s: float) -> None:
        """Count a tool, named by its command or else its name."""
        with self._lock:
            self._totals["tool_calls"] += 1
            self._totals["tool_s"] += duration_s
            self._note_tool(text, duration_s)

    def _note_tool(self, text: str, duration_s: float) -> None:
        self._longest_tool = max(self._longest_tool or (0.0, ""), (duration_s, text))

    def note_answer(self, server: str, answer: Any) -> None:
        """Note what a server says of the job's tokens; an answer of another form says nothing."""
        with suppress(KeyError, TypeError, ValueError, OverflowError):
            said = answer["tokens"]
            self._tokens[server] = {name: int(said[name]) for name in TOKEN_COUNTS}

    def end(self, error: object = None) -> None:
        """End the job: its servers free what they hold for it. Never waits."""
        if not self.is_over:
            if self.trace is not None:
                self.trace.end(error, self._totals["turns"])
            self._is_ended = True
            self.release()

    def release(self) -> None:
        """Make the servers free what they hold for this job now. Never waits."""
        self._releases = self.tell("release", {})

    def tell(self, action: str, body: Mapping[str, object]) -> list[threading.Event | None]:
        """Report a tool or the release to every server that the job used, in the background."""
        return [tell(action, body) for tell in list(self.listeners.values())]


@dataclass(eq=False)
class TaggedTurn:
    """A request to a model that is under way; it ends once."""

    job: Job[Any]
    request: Hashable
    tags: Tags
    started_at_s: float = field(default_factory=time.monotonic)
    span: Span | None = None
    is_over: bool = False

    def headers(self) -> dict[str, str]:
        """Its tags, and what routers and tracers read."""
        traced = {} if self.span is None else self.span.headers
        return {**self.tags.as_headers(), **self.job.routing_headers, **traced}

    def leave(self) -> None:
        """What the thread or task does from now on is not part of it; it may end later."""
        if self.span is not None:
            self.span.leave()

    @harmless("could not end a turn")
    def end(self, error: object = None) -> None:
        """Count it, perhaps with the exception or HTTP status that it failed with."""
        if self.is_over:
            return
        self.is_over = True
        self.job.end_turn(self, is_answered=error is None)
        if self.span is not None:
            self.span.leave()
            self.span.end(error)


class ToolRun:
    """A running tool: `with job.tool(call) as run`, or `async with`.

    `duration_s` is None until the tool ended; a tool that ended by an exception counts as well.
    """

    def __init__(self, job: Job[Any], call: ToolCall | str) -> None:
        from agentkv.commands.blocking import awaited  # slows `import agentkv` down

        if isinstance(call, str):
            call = ToolCall("", call)
        elif not isinstance(call, ToolCall):
            raise TypeError(
                f"job.tool(): got {type(call).__name__}, allowed is a call that "
                "agentkv.parse_tool_calls(reply) gives, a command, or a tool's name"
            )
        self._event = ToolEvent(
            "started",
            tool=_sendable(call.name),
            command=_sendable(call.command),
            limit_s=awaited(call).limit_s,
        )
        self._text = self._event.command or self._event.tool or "tool"
        self.duration_s: float | None = None
        self._job = job
        self._started_at_s = 0.0
        self._span: Span | None = None

    def __enter__(self) -> Self:
        self._event = replace(self._event, turn=self._job.last_turn)
        if self._job.trace is not None:
            program = (self._text.split(maxsplit=1) or ["tool"])[0]
            self._span = self._job.trace.tool(self._event.tool or program)
        self._started_at_s = time.monotonic()
        self._report()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.duration_s = time.monotonic() - self._started_at_s
        self._job.end_tool(self._text, self.duration_s)
        self._event = replace(self._event, state="finished", duration_s=self.duration_s)
        self._report()
        if self._span is not None:
            self._span.leave()
            self._span.end(exc_info[1] if exc_info else None)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *exc_info: object) -> None:
        self.__exit__(*exc_info)

    def _report(self) -> None:
        if not self._job.is_over:
            self._job.tell("tool", self._event.as_fields())


def _sendable(text: str | None) -> str | None:
    """The text without lone surrogates, which the wire refuses; None if it is empty.

    Cut to what a turn's tag may hold, so that the queue stays small.
    """
    return (text or "")[:MAX_TOOL_CHARS].encode(errors="replace").decode() or None
