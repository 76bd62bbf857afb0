"""Jobs and their turns as the engine sees them: which are live, what came before, when to forget.

RetentionManager keeps them; policies read them. Times are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from agentkv.commands.blocking import Awaited
from agentkv.durations import Prediction
from agentkv.durations.ttl import TTL
from agentkv.protocol import JobKey, Tags

from .forecast import SharedPrefix
from .pins import PinEnd

START_TOKENS = 64
"""Tokens at the start of a prompt that tell one agent's from another's and from side requests':
more than the default system prompt of a chat template, fewer than an agent's."""
SAME_PLACE_TURNS = 3
"""Turns in a row that diverge at one place before the next one is expected to."""
MAX_RUNNING_TOOLS = 64
"""Tools of one job remembered as running at once; a further one is not."""
MAX_RUNNING_CHARS = 4096
"""Characters kept of the commands of those tools, together."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Says how long a finished turn stays pinned, and after `command` what was predicted."""

    ttl: TTL
    command: str | None = None
    """What runs, as far as it was read; None if the reply holds no tool call."""
    speed: str | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    source: str | None = None
    explanation: str | None = None
    is_from_now: bool = False
    """The TTL counts from the decision on, not from the end of the turn."""
    doubtful_after_s: float = math.inf
    """Seconds after the turn from which the pin yields first and keeps nobody waiting."""

    @classmethod
    def predicted(
        cls, command: str | None, prediction: Prediction, ttl: TTL, *, is_from_now: bool
    ) -> Decision:
        """Make a decision by a prediction, without its distribution, which takes much memory."""
        return cls(
            ttl,
            command,
            prediction.speed,
            prediction.p50_s,
            prediction.p90_s,
            prediction.source,
            prediction.explanation,
            is_from_now,
        )


@dataclass(frozen=True, slots=True)
class Prompt:
    """Holds what a turn sends; its block hashes contain `cache_keys` (LoRA, salt) next to tokens.
    `trace_headers` say to which OpenTelemetry trace it belongs."""

    token_ids: Sequence[int]
    block_hashes: list[Any]
    cache_keys: object = None
    trace_headers: Mapping[str, str] | None = None

    @property
    def fingerprint(self) -> tuple[int, int, object]:
        """Its tokens, full blocks, and the last of their hashes."""
        hashes = self.block_hashes
        return len(self.token_ids), len(hashes), hashes[-1] if hashes else None

    def start(self, block_tokens: int) -> object:
        """Return the hash of its first START_TOKENS or longer first block; None if shorter."""
        index = max(1, START_TOKENS // block_tokens) - 1
        return self.block_hashes[index] if index < len(self.block_hashes) else None


@dataclass(frozen=True, slots=True)
class Context:
    """Says what a finished turn leaves in the cache: its full blocks, by chained hash.

    `token_ids` are its prompt, of `num_prompt_tokens`, and its reply.
    """

    block_hashes: list[Any]
    num_blocks: int
    block_tokens: int
    token_ids: Sequence[int]
    num_prompt_tokens: int
    hit_tokens: int | None = None
    """Tokens that a prefix hit finds of it; None: all. Fewer where layers have a state, which is in
    the cache for few ends of a prefix, or a sliding window."""

    def checkpoints(self) -> tuple[tuple[int, object], ...]:
        """Return up to 10 (index, hash) pairs of its full blocks, ending at its end."""
        hashes, num_blocks = self.block_hashes, min(self.num_blocks, len(self.block_hashes))
        if not num_blocks:
            return ()
        step = max(1, num_blocks // 8)
        hit_blocks = (self.hit_tokens or 0) // self.block_tokens
        ends = {min(hit_blocks or num_blocks, num_blocks) - 1, num_blocks - 1}
        indices = sorted({*range(step - 1, num_blocks, step), *ends})
        return tuple(zip(indices, map(hashes.__getitem__, indices), strict=True))


@dataclass(slots=True)
class Turn:
    """Follows one request of a job from its arrival to its end."""

    request_id: str
    job: Job
    order: int
    """Arrival number among all requests of the engine."""
    arrived_s: float
    num_prompt_tokens: int
    number: int = 1
    """Of its job's turns on this engine, from 1; a retry has that of the turn that it repeats."""
    is_last_step: bool = False
    is_first: bool = False
    """The turn opens its job, and no live job spawned that job."""
    held_back: str | None = None
    """Why admission control keeps the turn waiting; None if it does not."""
    is_side_request: bool = False
    """The prompt is shorter than the job's and starts otherwise, as for a title, or is a ping. It
    changes nothing of what is known about the job."""
    is_later: bool = False
    """An earlier turn of the job has left something that this one may find."""
    is_repeat: bool = False
    """It repeats the last finished prompt, whose reply has called a tool that is known."""
    has_aged_out: bool = False
    """It has waited for longer than `patience_s`."""
    common_tokens: int = 0
    """Tokens this prompt shares with what the job's last finished turn left in the cache."""
    admitted_s: float | None = None
    ttft_s: float | None = None
    """Seconds from its arrival to its first token; None before, or if it ended with that."""
    ended_s: float = math.nan
    hit_tokens: int = 0
    """Tokens of the prompt that were in the cache when it first had blocks."""
    loaded_tokens: int = 0
    """Those of them that a KV connector loaded."""
    was_reset: bool = False
    """A reset of the prefix cache took its blocks; it has none since."""
    ttl: TTL | None = None
    """TTL of the pin when the turn has finished and its blocks stay; None before, or if freed."""

    @property
    def may_be_held(self) -> bool:
        """Return False if it is known already that its blocks are freed when it ends."""
        return not (self.is_last_step or self.is_side_request or self.job.is_released)


@dataclass(frozen=True, slots=True)
class RunningTool:
    """Names a tool that the client said has started; its command may be cut or left out."""

    command: str
    started_s: float
    limit_s: float | None = None
    """The call's own limit; 0 in the background."""


@dataclass(slots=True)
class Job:
    """Follows one agent job: its place in the queue and what its last finished turn left behind."""

    job_id: JobKey
    """Its key in the engine, which says its client, too."""
    order: int
    """Arrival number of its first turn; of its parent's for a sub-agent of a live job."""
    parent_job_id: str | None = None
    lender: Job | None = None
    """The job in whose place it stands: the first of the chain of its parents."""
    borrowers: dict[str, Job] = field(default_factory=dict)
    """Sub-agents that stood in its place when they last had a turn, by job id."""
    expected_turns: int | None = None
    is_inferred: bool = False
    """No request names it: each of its turns continues the one before."""
    goes_on_without_call: bool = False
    """It is inferred, and such jobs go on after replies in which no tool call is read."""
    next_turn: Prediction | None = None
    """When it then goes on, by what such jobs did; None while too little is known."""
    priority: int = 0
    """The client's priority: lower goes first."""
    max_ttl_s: float = math.inf
    """No pin of its last turn lasts longer."""
    first_prompt_tokens: int = 0
    num_turns: int = 0
    last_turn: int | None = None
    kind: object = None
    """What its first prompt begins with: equal for jobs of one agent; None for a short one."""
    fingerprint: tuple[int, int, object] | None = None
    """Tokens, full blocks, and the last of their hashes, of the prompt that came last."""
    live: dict[str, Turn] = field(default_factory=dict)
    """Turns in the engine, by request."""
    has_run: bool = False
    """A turn of the job has had its blocks."""
    prefix: SharedPrefix | None = None
    """Blocks of its context that others held, too, when its first turn was let in or when its last
    turn ended."""
    is_released: bool = False
    finished_s: float | None = None
    context_tokens: int = 0
    usable_tokens: int = 0
    """Tokens of it that a prefix hit could find when the turn had ended."""
    checkpoints: tuple[tuple[int, object], ...] = ()
    found: deque[int] = field(default_factory=partial(deque, maxlen=SAME_PLACE_TURNS))
    """Tokens that its last turns found, while each diverged from what the one before had left."""
    tool: str | None = None
    is_tool_observed: bool = False
    decision: Decision | None = None
    """About the pin of the last finished turn; None until its tool is known."""
    blocking: Awaited | None = None
    """What the agent waits for in the command that was decided about."""
    awaited: str | int | None = None
    """Key of the prediction that the pin waits for."""
    running: list[RunningTool] = field(default_factory=list)
    has_had_grace: bool = False
    """A tool of the last finished turn has ended, and the pin was held for the next turn."""
    was_reset: bool = False
    """The prefix cache was reset after the last finished turn."""
    has_paused: bool = False
    """The engine was paused, or went on, after the last finished turn."""
    was_aborted: bool = False
    """The turn of that prompt was aborted."""
    started_s: float = 0.0
    last_activity_s: float = 0.0
    num_diverged: int = 0
    num_evicted: int = 0
    pin_end: PinEnd | None = None
    """Why its last pin ended."""
    command_shown: str | None = None
    """Of the last decision: the tool call's key, or its text with `show_commands`."""
    tier_key: object = None
    """By which a KV tier knows the end of its context; None without a tier."""
    client: str = field(init=False)
    """The client that made it; "" without an API server."""

    def __post_init__(self) -> None:
        self.job_id = JobKey.read(self.job_id)
        self.client = self.job_id.client

    @property
    def own_id(self) -> str:
        """Return the id that its client gave it."""
        return self.job_id.own_id

    @property
    def took_s(self) -> float:
        """Seconds from its first turn's arrival to what it did last."""
        return round(self.last_activity_s - self.started_s, 3)

    @property
    def has_waiting_turn(self) -> bool:
        """Return whether a turn of the job waits for its first blocks."""
        return any(turn.admitted_s is None for turn in self.live.values())

    def finish_turn(self, now_s: float, context: Context, *, keeps_tool: bool = False) -> int:
        """End a turn: what was known of the tool before it counts only if it `keeps_tool`.

        Returns by how many tokens it lengthened the context.
        """
        if not keeps_tool:
            self.finished_s = now_s
            self.tool, self.is_tool_observed, self.decision, self.blocking = None, False, None, None
            self.has_had_grace = self.has_paused = False
            self.running.clear()
        self.was_reset = False
        before = self.context_tokens or self.first_prompt_tokens
        num_tokens = context.num_blocks * context.block_tokens  # of its full blocks
        hit_tokens = context.hit_tokens
        self.context_tokens, self.checkpoints = num_tokens, context.checkpoints()
        self.usable_tokens = num_tokens if hit_tokens is None else hit_tokens
        self.was_aborted = False
        return max(0, num_tokens - before)

    def usable(self, common_tokens: int) -> int:
        """Return how many tokens a prompt finds which shares the first `common_tokens` with the
        context: where only the end of what is usable can be hit, all of that or nothing."""
        if self.usable_tokens == self.context_tokens:
            return common_tokens
        return self.usable_tokens if common_tokens >= self.usable_tokens else 0

    def start_tool(self, tool: RunningTool) -> list[RunningTool]:
        """Note a running tool; returns all that run now."""
        others = [each for each in self.running if each.command]
        if len(self.running) < MAX_RUNNING_TOOLS:
            free_chars = max(0, MAX_RUNNING_CHARS - sum(len(each.command) for each in others))
            self.running.append(replace(tool, command=tool.command[:free_chars]))
        return [*others, tool]

    def finish_tool(self, command: str) -> bool:
        """Note the end of a tool; True if no other one runs."""
        matching = [tool for tool in self.running if command.startswith(tool.command)]
        if self.running:
            self.running.remove(max(matching or self.running, key=lambda tool: len(tool.command)))
        return not self.running

    def is_repeated_by(self, prompt: Prompt) -> bool:
        """Return whether a prompt is that of the last finished turn, and no other turn is live."""
        is_idle = self.finished_s is not None and not self.live and not self.was_aborted
        return is_idle and prompt.fingerprint == self.fingerprint

    def take_tags(self, tags: Tags, prompt: Prompt) -> bool:
        """Note what an arriving request says of the job; True if it is a new turn."""
        is_new = self.counts_as_new_turn(tags.turn, prompt)
        self.num_turns += is_new
        self.fingerprint, self.was_aborted = prompt.fingerprint, False
        self.last_turn = max(self.last_turn or 0, tags.turn) if tags.turn else self.last_turn
        self.parent_job_id = tags.parent_job_id or self.parent_job_id
        self.expected_turns = tags.expected_turns or self.expected_turns
        self.max_ttl_s = math.inf if tags.max_ttl_s is None else tags.max_ttl_s
        self.is_released = False
        return is_new

    def counts_as_new_turn(self, turn: int | None, prompt: Prompt) -> bool:
        """Return whether an arriving request is a new turn of the job, not a retry or a sibling.

        With a `turn` tag, that is a number not seen before; without, a prompt that differs from
        the last one (the children of `n > 1` and a client's retries repeat it) and, if that was
        aborted, does not go on from it (a trainer sends it again with the tokens so far).
        """
        if turn is not None:
            return self.last_turn is None or turn > self.last_turn
        if self.was_aborted and self.fingerprint is not None:
            _, num_blocks, last_hash = self.fingerprint
            hashes = prompt.block_hashes
            if 0 < num_blocks <= len(hashes) and hashes[num_blocks - 1] == last_hash:
                return False
        return prompt.fingerprint != self.fingerprint

    def turn_admitted(self, turn: Turn) -> None:
        """Count a turn whose prompt repeats less than all of what the turn before left."""
        if turn.is_side_request:
            return
        expected = min(self.usable_tokens, turn.num_prompt_tokens - 1)
        if self.finished_s is not None and turn.common_tokens < expected:
            self.num_diverged += 1
            self.found.append(max(turn.common_tokens, turn.hit_tokens))
        else:
            self.found.clear()

    def will_find(self, num_tokens: int) -> int:
        """Return how many of `num_tokens` a next turn is expected to find: all but where the
        last turns diverged at one place, as those of an agent do that sends its newest messages
        only."""
        is_one_place = len(self.found) == SAME_PLACE_TURNS and len(set(self.found)) == 1
        return min(num_tokens, self.found[0]) if is_one_place else num_tokens

    @property
    def worth_tokens(self) -> int:
        """Tokens of its context that a next turn is expected to find."""
        return self.will_find(self.usable_tokens)

    def common_tokens(self, prompt: Prompt, block_tokens: int) -> int:
        """Count the tokens of a new prompt that equal the context the last finished turn left.

        Block hashes are chained, so one equal hash proves the whole prefix before it. Exact at the
        checkpoints (the end and up to 8 places before it), else the next lower one. vLLM computes
        at least the prompt's last token.
        """
        block_hashes, most = prompt.block_hashes, (len(prompt.token_ids) - 1) // block_tokens
        for index, block_hash in reversed(self.checkpoints):
            if index < len(block_hashes) and block_hashes[index] == block_hash:
                return min(index + 1, most) * block_tokens
        return 0
