"""The reference's pin experiment: one job of five turns with gaps, then one left to its TTL.

`agentkv verify-pin` runs it and judges the result. Returns what was measured; judges nothing,
prints nothing.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, NamedTuple

from agentkv.policies.pins import ENDINGS

from .server import BlockPool, ChatAnswer, ServerFacts, ServerUnderTest, Snapshot

READING_EVERY_S = 0.3
_TTL_READING_EVERY_S = 0.1
# Pins of earlier runs end by themselves; a server busy for longer is in use.
_MAX_WAIT_FOR_IDLE_S = 10.0
# How much later than promised a pin may be seen to end.
_TTL_MARGIN_S = 2.0
# A turn's answer can arrive a moment before its numbers do.
_SETTLE_S = 0.05
# Tokenizers make 2.5 to 4.5 characters of such text into one token; a low guess gives text that
# is rather too long than too short.
_CHARS_PER_TOKEN = 4
# Each turn must fill at least one block more than the one before it.
_BLOCKS_PER_TURN = 1.5

SYSTEM_PROMPT = "You write bash commands. Answer with only a bash block, without any explanation."


class TurnScript(NamedTuple):
    """A user's request, and one line of the tool output that comes before the next turn.

    `output_tokens` is the size of the output that the reference experiment added.
    """

    user_prompt: str
    output_line: str
    output_tokens: int

    def simulated_output(self, block_size: int) -> str:
        """Output of the turn's tool: the reference's size, or more if blocks are larger."""
        num_tokens = max(self.output_tokens, _BLOCKS_PER_TURN * block_size)
        num_lines = ceil(_CHARS_PER_TOKEN * num_tokens / len(self.output_line.format(0)))
        return "\n".join(map(self.output_line.format, range(num_lines)))


TURNS = (
    TurnScript("List files in the project.", "src/module_{:03d}.py", 33),
    TurnScript("Read main.py.", "def step_{0}(value): return value + {0}", 115),
    TurnScript("Search for TODO comments.", "src/module_{0:03d}.py:7: # TODO: case {0}", 82),
    TurnScript("Check git status.", "        modified:   src/module_{:03d}.py", 78),
    TurnScript("Run pytest.", "tests/test_module_{:03d}.py PASSED", 0),
)
_NOTES = TurnScript(SYSTEM_PROMPT, "Note {0}: module_{0:03d} depends on nothing.", 66)


def system_prompt(block_size: int) -> str:
    """The system prompt, with enough notes on the project that the first turn fills a block."""
    return f"{SYSTEM_PROMPT}\n{_NOTES.simulated_output(block_size)}"


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """Tokens of one call as the server reported them."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int

    def blocks_touched(self, block_size: int) -> int:
        """ceil(tokens / block size): what the reference experiment expected to stay."""
        return ceil((self.prompt_tokens + self.output_tokens) / block_size)

    def blocks_full(self, block_size: int) -> int:
        """Blocks that can stay pinned.

        Only full blocks have a hash by which the next turn finds them, and the last token sampled
        has no KV yet: it would be computed by the next step.
        """
        return (self.prompt_tokens + self.output_tokens - 1) // block_size


@dataclass(frozen=True, slots=True)
class TurnRow:
    """One turn: blocks in use before it, after it, and at each reading of the gap that follows."""

    turn: int
    user_prompt: str
    reply: str
    usage: TurnTokens
    latency_s: float
    blocks_before: int
    blocks_after: int
    gap_blocks: tuple[int, ...]
    is_last_step: bool
    happened: str

    @property
    def change_in_gap_blocks(self) -> int:
        """The largest change in the gap from the reading after the turn, with its sign."""
        return max((blocks - self.blocks_after for blocks in self.gap_blocks), key=abs, default=0)


@dataclass(frozen=True, slots=True)
class TTLTrial:
    """A second job, left alone after its first turn until its pin expires.

    `ttl_s` is what the server said was left right after the turn, None if it did not say;
    `held_s` is when the blocks were seen free, None if they were not within `waited_s`.
    """

    blocks_before: int
    blocks_after: int
    blocks_at_end: int
    ttl_s: float | None
    held_s: float | None
    waited_s: float


@dataclass(frozen=True, slots=True)
class PinRun:
    """A whole run. `policy` is None on a server without the agentkv routes."""

    base_url: str
    model: str
    policy: str | None
    block_size: int
    num_blocks: int
    gap_s: float
    blocks_at_start: int
    turns: tuple[TurnRow, ...]
    ttl_trial: TTLTrial
    num_foreign_requests: int

    def as_dict(self) -> dict[str, Any]:
        """Everything measured, ready for JSON, with the blocks expected of each turn."""
        turns = [
            asdict(row)
            | {
                "blocks_touched": row.usage.blocks_touched(self.block_size),
                "blocks_full": row.usage.blocks_full(self.block_size),
                "change_in_gap_blocks": row.change_in_gap_blocks,
            }
            for row in self.turns
        ]
        return asdict(self) | {"turns": turns}


@dataclass(slots=True)
class PinExperiment:
    """One run against one server; `on_row` gets each row as soon as it is complete.

    fallback_ttl_s: how long a pin may live on a server that does not tell its TTL.
    """

    server: ServerUnderTest
    facts: ServerFacts
    pool: BlockPool
    gap_s: float
    fallback_ttl_s: float
    on_row: Callable[[TurnRow], None]
    _num_requests: int = 0
    _max_foreign_running: int = 0

    def run(self, base_url: str) -> PinRun:
        """Raises TurnError if a turn gets no answer, after releasing what is pinned."""
        start, deadline_s = self.server.snapshot(), time.monotonic() + _MAX_WAIT_FOR_IDLE_S
        while self._held(start) and time.monotonic() < deadline_s:
            time.sleep(READING_EVERY_S)
            start = self.server.snapshot()
        turns = tuple(self._five_turns())
        trial = self._leave_to_ttl()
        num_finished = self.server.snapshot().num_finished - start.num_finished
        return PinRun(
            base_url=base_url,
            model=self.facts.model,
            policy=self.facts.policy,
            block_size=self.pool.block_size,
            num_blocks=self.pool.num_blocks,
            gap_s=self.gap_s,
            blocks_at_start=self._held(start),
            turns=turns,
            ttl_trial=trial,
            num_foreign_requests=max(num_finished - self._num_requests, self._max_foreign_running),
        )

    def _five_turns(self) -> Iterator[TurnRow]:
        job_id = f"verify-pin-{uuid.uuid4().hex[:12]}"
        messages = [{"role": "system", "content": system_prompt(self.pool.block_size)}]
        before_prompt = ""
        try:
            for turn, script in enumerate(TURNS, start=1):
                messages.append({"role": "user", "content": before_prompt + script.user_prompt})
                row = self._turn(turn, messages, job_id)
                self.on_row(row)
                yield row
                messages.append({"role": "assistant", "content": row.reply})
                before_prompt = f"Output:\n{script.simulated_output(self.pool.block_size)}\n\n"
        finally:
            self.server.release(job_id)

    def _turn(self, turn: int, messages: list[dict[str, str]], job_id: str) -> TurnRow:
        is_last_step = turn == len(TURNS)
        before = self.server.snapshot()
        reply = self._chat(messages, job_id, is_last_step=is_last_step)
        after = self.server.snapshot()
        gap = [] if is_last_step else self._read_gap()
        cached_tokens = reply.cached_tokens
        if cached_tokens is None:  # as by default: vLLM tells them on request only
            cached_tokens = after.cached_tokens - before.cached_tokens
        readings = (before, after, gap[-1] if gap else after)
        return TurnRow(
            turn=turn,
            user_prompt=TURNS[turn - 1].user_prompt,
            reply=reply.text,
            usage=TurnTokens(reply.prompt_tokens, reply.output_tokens, cached_tokens),
            latency_s=reply.latency_s,
            blocks_before=self._held(before),
            blocks_after=self._held(after),
            gap_blocks=tuple(map(self._held, gap)),
            is_last_step=is_last_step,
            happened=what_happened(*readings, self.pool, is_last_step=is_last_step),
        )

    def _read_gap(self) -> list[Snapshot]:
        """Readings every 0.3 s and one at the gap's end."""
        started_s = time.monotonic()
        readings: list[Snapshot] = []
        for number in range(1, ceil(self.gap_s / READING_EVERY_S) + 1):
            due_s = started_s + min(number * READING_EVERY_S, self.gap_s)
            time.sleep(max(0.0, due_s - time.monotonic()))
            readings.append(self._read_idle())
        return readings

    def _leave_to_ttl(self) -> TTLTrial:
        job_id = f"verify-pin-{uuid.uuid4().hex[:12]}"
        messages = [
            {"role": "system", "content": system_prompt(self.pool.block_size)},
            {"role": "user", "content": TURNS[0].user_prompt},
        ]
        before = self._held(self.server.snapshot())
        self._chat(messages, job_id, is_last_step=False)
        started_s = time.monotonic()
        ttl_s = self.server.ttl_left_s(job_id)
        after = at_end = self._held(self.server.snapshot())
        limit_s = _TTL_MARGIN_S + (self.fallback_ttl_s if ttl_s is None else ttl_s)
        held_s = None
        while after > before and held_s is None and time.monotonic() - started_s < limit_s:
            time.sleep(_TTL_READING_EVERY_S)
            at_end = self._held(self._read_idle())
            held_s = time.monotonic() - started_s if at_end <= before else None
        waited_s = time.monotonic() - started_s
        self.server.release(job_id)
        return TTLTrial(before, after, at_end, ttl_s, held_s, waited_s)

    def _chat(
        self, messages: list[dict[str, str]], job_id: str, *, is_last_step: bool
    ) -> ChatAnswer:
        model = self.facts.model
        reply = self.server.chat(model, messages, job_id=job_id, is_last_step=is_last_step)
        self._num_requests += 1
        time.sleep(_SETTLE_S)
        return reply

    def _read_idle(self) -> Snapshot:
        """A reading while none of our requests runs: any request that does is someone else's."""
        snapshot = self.server.snapshot()
        self._max_foreign_running = max(self._max_foreign_running, snapshot.num_unfinished)
        return snapshot

    def _held(self, snapshot: Snapshot) -> int:
        return snapshot.held_blocks(self.pool)


def what_happened(
    before: Snapshot, after: Snapshot, gap_end: Snapshot, pool: BlockPool, *, is_last_step: bool
) -> str:
    """One line on a turn's blocks, from readings before it, after it and at the end of its gap.

    On a server with the plugin its own counters are the source, else the usage alone.
    """
    end = "freed: last step" if is_last_step else "freed at once"
    if after.pinned_blocks is None:
        return f"{held} blocks held" if (held := after.held_blocks(pool)) else end
    has_pinned = after.num_pins > before.num_pins
    pinned = f"pinned {after.pinned_blocks} blocks" if has_pinned else "not pinned"
    events = [
        *_ends_between(before, after),
        end if is_last_step and not has_pinned else pinned,
        *_ends_between(after, gap_end),
    ]
    return "; ".join(dict.fromkeys(events))


def _ends_between(earlier: Snapshot, later: Snapshot) -> list[str]:
    before, after = earlier.pin_ends, later.pin_ends
    return [each.words for end, each in ENDINGS.items() if after.get(end, 0) > before.get(end, 0)]
