"""One fold for everybody who reads events: puts a job's events together into what happened to it.

Takes the events of the log as plain data, from the engine, a file or a stream. Events name the job,
not the request: of several turns of a job at once, a start belongs to the waiting one with its
prompt length and an end to the one that started first. A log bounded in memory may begin in the
middle of a job. Times are seconds since the engine started; None has not happened or was not
recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple

from agentkv.policies.pins import ENDINGS
from agentkv.visible import visible

Entry = Mapping[str, Any]
"""An event of the log: `event`, `at_s` and its details."""

KEPT_ENDS = ("returned",)
"""Ends of a hold that paid: the job's next turn took the blocks over."""
WASTED_ENDS = ("expired", "slow", "lease", "forgotten", "pressure")
"""Ends of a hold that kept memory in vain: the job did not come back in time. Logs of 0.1 say
`forgotten` for `lease`."""


@dataclass(slots=True)
class TurnView:
    """One request of a job.

    Attributes:
        is_due: It had been passed over as often as a first turn may be, and went before all others.
        expected_hit_tokens: Tokens of the prompt that repeat what the turn before left in the cache
            as far as its checkpoints tell.
        context_before_tokens: Tokens in whole blocks that the turn before left; 0 for a first turn.
        lost_tokens: Those of `expected_hit_tokens` that were no longer in the cache.
        expected_tokens: Tokens that the turn before had left for it; 0 for a first turn.
        miss: Why fewer tokens were found than expected, as plain data; None if they were found.
        output_tokens: Of a turn that finished; at least that many in logs that do not say.
        ttft_s: From its arrival to its first token.
        hold: What was held after it.
        command: What the reply runs, as far as a policy read it and the log shows it.
    """

    turn: int | None
    arrived_s: float
    prompt_tokens: int
    is_retry: bool = False
    is_due: bool = False
    started_s: float | None = None
    hit_tokens: int = 0
    expected_hit_tokens: int = 0
    context_before_tokens: int = 0
    lost_tokens: int = 0
    expected_tokens: int = 0
    miss: Mapping[str, Any] | None = None
    preempted_s: list[float] = field(default_factory=list)
    resumed_s: list[float] = field(default_factory=list)
    ended_s: float | None = None
    is_aborted: bool = False
    output_tokens: int | None = None
    ttft_s: float | None = None
    hold: HoldView | None = None
    command: str | None = None

    @property
    def waited_s(self) -> float | None:
        """From arrival to the first step that computes it."""
        return None if self.started_s is None else self.started_s - self.arrived_s

    @property
    def is_continuing(self) -> bool:
        """True if an earlier turn of the job left a context, and this one ran."""
        return self.context_before_tokens > 0 and self.started_s is not None

    @property
    def is_diverged(self) -> bool:
        """True if the prompt repeats less than all of what the turn before left.

        Source: Job.turn_admitted in agentkv/policies/jobs.py.
        """
        repeatable = min(self.context_before_tokens, self.prompt_tokens - 1)
        return self.is_continuing and self.expected_hit_tokens < repeatable

    def as_row(self, next_arrived_s: float | None) -> dict[str, Any]:
        """What `/jobs/{id}`, `/explain` and the live page show of it."""
        names = ("turn", "prompt_tokens", "expected_tokens", "hit_tokens", "miss")
        hold, took_s, gap_s = self.hold, None, None
        if self.ended_s is not None:
            took_s = round(self.ended_s - self.arrived_s, 6)
            gap_s = None if next_arrived_s is None else round(next_arrived_s - self.ended_s, 6)
        return {
            **{name: getattr(self, name) for name in (*names, "output_tokens", "command")},
            "waited_s": self.waited_s,
            "ttft_s": self.ttft_s,
            "took_s": took_s,
            "gap_s": gap_s,
            "hold": None if hold is None else hold.text,
        }


class Bubble(NamedTuple):
    """The time between a turn's end and the job's next start: tools first, then the queue."""

    ended_s: float
    arrived_s: float
    started_s: float

    @property
    def seconds(self) -> float:
        return self.started_s - self.ended_s

    @property
    def tool_s(self) -> float:
        """Until the next turn arrived: tools, the agent's own work, the network."""
        return self.arrived_s - self.ended_s

    @property
    def queued_s(self) -> float:
        return self.started_s - self.arrived_s


@dataclass(slots=True)
class HoldView:
    """The blocks of a finished turn, held; `end` says why they were given back."""

    pinned_s: float
    blocks: int
    said: list[Entry] = field(default_factory=list)
    """The newest event that says for how long, and the one of its end."""
    ended_s: float | None = None
    end: str | None = None

    @property
    def text(self) -> str:
        return "; ".join(map(sentence, self.said))

    @property
    def block_seconds(self) -> float:
        """Memory held, blocks times seconds; 0 for a hold that has not ended."""
        return 0.0 if self.ended_s is None else self.blocks * (self.ended_s - self.pinned_s)


@dataclass(slots=True)
class ToolView:
    """A tool call that the client reported, with the duration that it measured."""

    name: str
    command: str
    started_s: float
    ended_s: float | None = None
    duration_s: float | None = None


@dataclass(slots=True)
class JobView:
    """A job from its first event to its last; `life` counts from 1 where an id was used again."""

    job_id: str
    engine: int | None = None
    first_event_s: float = 0.0
    ended_s: float = 0.0
    life: int = 1
    turns: list[TurnView] = field(default_factory=list)
    bubbles: list[Bubble] = field(default_factory=list)
    holds: list[HoldView] = field(default_factory=list)
    tools: list[ToolView] = field(default_factory=list)
    closed_s: float | None = None
    close_reason: str | None = None
    parent_job_id: str | None = None
    _waiting: list[TurnView] = field(default_factory=list)
    _running: list[TurnView] = field(default_factory=list)
    _lost_tokens: int = 0
    _context_tokens: int = 0
    _idle_since_s: float | None = None
    _finished: TurnView | None = None

    @property
    def label(self) -> str:
        engine = "" if self.engine is None else f" @{self.engine}"
        return self.job_id + engine + (f" ({self.life})" if self.life > 1 else "")

    @property
    def started_s(self) -> float:
        """The first time known of the job, which may lie before the log's first event."""
        begun = [turn.arrived_s for turn in self.turns] + [hold.pinned_s for hold in self.holds]
        return min([self.first_event_s, *begun, *(tool.started_s for tool in self.tools)])

    def rows(self) -> list[dict[str, Any]]:
        """Its turns that have had blocks, as plain data."""
        ran = [turn for turn in self.turns if turn.started_s is not None]
        arrived_s = (turn.arrived_s for turn in ran[1:])
        return [turn.as_row(next_s) for turn, next_s in zip_longest(ran, arrived_s)]

    def hits(self) -> tuple[int, int]:
        """Tokens of the prompts of its later turns, and those of them found in the cache."""
        later = [turn for turn in self.turns if turn.is_continuing]
        return sum(turn.prompt_tokens for turn in later), sum(turn.hit_tokens for turn in later)

    def take(self, entry: Entry) -> None:
        """Apply the next event; an unknown one is ignored."""
        self.ended_s = max(self.ended_s, float(entry["at_s"]))
        handler = _HANDLERS.get(entry["event"])
        if handler is not None:
            handler(self, entry)

    def _on_arrival(self, entry: Entry) -> None:
        is_retry = bool(entry.get("retry"))
        if parent_job_id := entry.get("parent"):
            self.parent_job_id = str(parent_job_id)
        self._add(int(entry["turn"]), float(entry["at_s"]), entry, is_retry=is_retry)
        if not is_retry:
            # the client's report may have been lost: a new turn says that the tools are over
            self._end_tools(float(entry["at_s"]))

    def _add(
        self, number: int | None, at_s: float, entry: Entry, *, is_retry: bool = False
    ) -> None:
        turn = TurnView(number, at_s, int(entry["prompt_length"]), is_retry)
        turn.context_before_tokens = self._context_tokens
        self.turns.append(turn)
        self._waiting.append(turn)

    def _on_due(self, entry: Entry) -> None:
        for turn in self._waiting:
            turn.is_due = True

    def _on_evicted(self, entry: Entry) -> None:
        self._lost_tokens = int(entry["lost_tokens"])

    def _on_started(self, entry: Entry) -> None:
        at_s, prompt_tokens = float(entry["at_s"]), int(entry["prompt_length"])
        if not self._waiting:
            self._add(None, at_s - entry["waited_s"], entry)
        same = [turn for turn in self._waiting if turn.prompt_tokens == prompt_tokens]
        turn = (same or self._waiting)[0]
        turn.started_s = at_s
        turn.hit_tokens = int(entry["hit_length"])
        turn.expected_hit_tokens = int(entry["expected_hit_length"])
        turn.lost_tokens, self._lost_tokens = self._lost_tokens, 0
        if self._idle_since_s is not None:
            arrived_s = max(turn.arrived_s, self._idle_since_s)
            self.bubbles.append(Bubble(self._idle_since_s, arrived_s, at_s))
        self._idle_since_s = None
        self._waiting.remove(turn)
        self._running.append(turn)

    def _on_reuse(self, entry: Entry) -> None:
        if self._running:
            turn = self._running[-1]
            turn.turn = int(entry["turn"])
            turn.expected_tokens = int(entry["expected_tokens"])
            turn.miss = entry.get("miss")

    def _on_preempted(self, entry: Entry) -> None:
        if self._running:
            self._running[-1].preempted_s.append(float(entry["at_s"]))

    def _on_resumed(self, entry: Entry) -> None:
        for turn in self._running:
            if len(turn.preempted_s) > len(turn.resumed_s):
                turn.resumed_s.append(float(entry["at_s"]))
                return

    def _on_ended(self, entry: Entry) -> None:
        is_finished = entry["event"] == "finish"
        if is_finished:
            self._context_tokens = int(entry["context_length"])
        ending = self._running or self._waiting
        if not ending:
            return
        turn = ending.pop(0)
        if is_finished:
            # the context is known in whole blocks, and without the last token
            least_tokens = max(1, self._context_tokens - turn.prompt_tokens + 1)
            turn.output_tokens = int(entry.get("output_length") or least_tokens)
            turn.ttft_s, self._finished = entry.get("ttft_s"), turn
        turn.ended_s, turn.is_aborted = float(entry["at_s"]), not is_finished
        if turn.started_s is not None and not self._running:
            self._idle_since_s = turn.ended_s

    def _on_decision(self, entry: Entry) -> None:
        turn = self._finished
        if turn is not None and entry.get("told_by") == "reply":
            turn.command = entry.get("command")
        if turn is not None and turn.hold is not None:
            turn.hold.said[:1] = [entry]

    def _on_pinned(self, entry: Entry) -> None:
        hold = HoldView(float(entry["at_s"]), int(entry["blocks"]), [entry])
        self.holds.append(hold)
        if self._finished is not None:
            self._finished.hold = hold

    def _on_unpinned(self, entry: Entry) -> None:
        at_s = float(entry["at_s"])
        if not self.holds or self.holds[-1].ended_s is not None:
            self.holds.append(HoldView(at_s - entry["held_s"], int(entry["blocks"])))
        hold = self.holds[-1]
        hold.ended_s, hold.end = at_s, str(entry.get("reason", "unknown"))
        hold.said.append(entry)

    def _on_tool_started(self, entry: Entry) -> None:
        name, command = (str(entry.get(key) or "") for key in ("tool", "command"))
        self.tools.append(ToolView(name, command, float(entry["at_s"])))

    def _on_tool_finished(self, entry: Entry) -> None:
        command = str(entry.get("command") or "")
        open_tools = [tool for tool in self.tools if tool.ended_s is None]
        same = [tool for tool in open_tools if tool.command == command] or open_tools
        if not same:  # the report of its start was lost
            self._on_tool_started(entry)
            same = self.tools[-1:]
            same[0].started_s -= float(entry.get("duration_s") or 0.0)
        same[0].ended_s, same[0].duration_s = float(entry["at_s"]), entry.get("duration_s")

    def _end_tools(self, at_s: float) -> None:
        for tool in self.tools:
            tool.ended_s = at_s if tool.ended_s is None else tool.ended_s

    def _on_closed(self, entry: Entry) -> None:
        self.closed_s, self.close_reason = float(entry["at_s"]), str(entry.get("reason", ""))
        self._end_tools(self.closed_s)


_HANDLERS: Mapping[str, Callable[[JobView, Entry], None]] = {
    "arrival": JobView._on_arrival,
    "due": JobView._on_due,
    "evicted": JobView._on_evicted,
    "waiting_to_running": JobView._on_started,
    "reuse": JobView._on_reuse,
    "preempted": JobView._on_preempted,
    "resumed": JobView._on_resumed,
    "finish": JobView._on_ended,
    "aborted": JobView._on_ended,
    "decision": JobView._on_decision,
    "pinned": JobView._on_pinned,
    "unpinned": JobView._on_unpinned,
    "tool_started": JobView._on_tool_started,
    "tool_finished": JobView._on_tool_finished,
    "closed": JobView._on_closed,
}


def job_views(job_id: str, entries: Iterable[Entry], engine: int | None = None) -> list[JobView]:
    """The lives of one job id, oldest first: an id used after its close is a new job."""
    views: list[JobView] = []
    for entry in entries:
        if not views or (views[-1].close_reason and entry["event"] == "arrival"):
            at_s = float(entry["at_s"])
            views.append(JobView(job_id, engine, at_s, at_s, len(views) + 1))
        views[-1].take(entry)
    return views


def sentence(entry: Entry) -> str:
    """What an event says, in words; its name for one that says no more."""
    name = str(entry["event"])
    write = _SENTENCES.get(name)
    with suppress(KeyError, TypeError, ValueError):  # of another version of the plugin
        if write is not None:
            return visible(write(entry))
    return visible(name.replace("_", " "))


def _decision(entry: Entry) -> str:
    """How long the KV is held, and for what; logs of 0.1 do not say how many blocks."""
    command, p50_s, p90_s = (entry.get(name) for name in ("command", "p50_s", "p90_s"))
    blocks = entry.get("blocks")
    what = "the KV" if blocks is None else _blocks(blocks)
    runs = f"`{command}` runs" if command else "the reply calls no tool"
    usual = "" if p50_s is None or p90_s is None else f", usually {_range_s(p50_s, p90_s)}"
    if blocks == 0:
        return f"nothing is held: {runs}{usual}"
    if not entry["ttl_s"]:
        return f"lets {what} go: {runs}{usual}, too long to hold for"
    held = f"holds {what} for up to {_s(entry['ttl_s'])}"
    return f"{held} while {runs}{usual}" if command else f"{held}: {runs}"


def _blocks(number: int) -> str:
    return f"{number:,} block{'' if number == 1 else 's'}"


def _s(seconds: float) -> str:
    """A duration in words, of 0.1 s at least."""
    if seconds < 9.95:
        return f"{max(seconds, 0.1):.1f}".removesuffix(".0") + " s"
    return f"{seconds:.0f} s" if seconds < 119.5 else f"{seconds / 60:.0f} min"


def _range_s(least_s: float, most_s: float) -> str:
    least, most = _s(least_s), _s(most_s)
    if least == most:
        return most
    number, unit = least.split()
    return f"{number if most.endswith(unit) else least} to {most}"


def _unpinned(entry: Entry) -> str:
    after = f"after {_s(entry['held_s'])}"
    if entry["reason"] in KEPT_ENDS:
        return f"its next turn came {after}"
    # that a tool is slow, the decision has said
    return f"let go {after}" + ("" if entry["reason"] == "slow" else f": {_why(entry)}")


def _started(entry: Entry) -> str:
    hit, prompt, expected = (entry[f"{each}_length"] for each in ("hit", "prompt", "expected_hit"))
    missed = f", {expected:,} expected" if expected > hit else ""
    return f"runs after {entry['waited_s']:.2f} s: {hit:,} of {prompt:,} tokens cached{missed}"


def _why(entry: Entry) -> str:
    """The reason of an end in words, by the one table of them."""
    ending = ENDINGS.get(entry["reason"])
    return str(entry["reason"]) if ending is None else ending.words


def _reuse(entry: Entry) -> str:
    if entry["miss"]:
        return f"computes {entry['miss']['tokens']:,} tokens again: {entry['miss']['why']}"
    return f"finds all {entry['expected_tokens']:,} tokens that the turn before left to be found"


_SENTENCES: Mapping[str, Callable[[Entry], str]] = {
    "arrival": lambda entry: f"turn {entry['turn']} arrives, {entry['prompt_length']:,} tokens",
    "held": lambda entry: f"waits for admission: {entry['reason']}",
    "waiting_to_running": _started,
    "evicted": lambda entry: f"{entry['lost_tokens']:,} tokens were gone from the cache",
    "reuse": _reuse,
    "finish": lambda entry: f"turn ends, {entry['context_length']:,} tokens of context",
    "pinned": lambda entry: f"holds {_blocks(entry['blocks'])} for up to {_s(entry['ttl_s'])}",
    "decision": _decision,
    "trimmed": lambda entry: f"gives {_blocks(entry['blocks'])} away, keeps {entry['left']:,}",
    "unpinned": _unpinned,
    "tool_started": lambda entry: f"tool starts: {entry.get('command') or entry.get('tool')}",
    "tool_finished": lambda entry: f"tool ends after {entry['duration_s']:.2f} s",
    "closed": lambda entry: f"over after {entry['turns']} turns: {_why(entry)}",
}
