"""Drives the reference experiment: one job of five turns with gaps, then one left to its TTL.

Measures and returns rows; it judges nothing and prints nothing.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .pin_events import what_happened
from .pin_prompts import TURNS, TurnScript, simulated_output, system_prompt
from .pin_rows import PinRun, TTLTrial, TurnRow, Usage
from .pin_server import PinServer, Reply, ServerFacts
from .server_metrics import Snapshot

READING_EVERY_S = 0.3
_TTL_READING_EVERY_S = 0.1
# Pins of earlier runs end by themselves; a server busy for longer is in use.
_MAX_WAIT_FOR_IDLE_S = 10.0
# How much later than promised a pin may be seen to end.
_TTL_MARGIN_S = 2.0
# A turn's answer can arrive a moment before its numbers do.
_SETTLE_S = 0.05


@dataclass(frozen=True, slots=True)
class Plan:
    """`fallback_ttl_s` is how long a pin may live on a server that does not tell."""

    gap_s: float
    fallback_ttl_s: float


class PinExperiment:
    """One run against one server; `on_row` sees each row as soon as it is complete."""

    def __init__(
        self,
        server: PinServer,
        facts: ServerFacts,
        plan: Plan,
        *,
        on_row: Callable[[TurnRow], None] = lambda row: None,
    ) -> None:
        self._server = server
        self._facts = facts
        self._plan = plan
        self._on_row = on_row
        self._num_requests = 0
        self._max_foreign_running = 0

    def run(self, base_url: str) -> PinRun:
        """Raises TurnError if a turn gets no answer; what is pinned is released before that."""
        start = self._wait_for_idle()
        turns = tuple(self._five_turns())
        trial = self._leave_to_ttl()
        end = self._server.snapshot()
        num_foreign_finished = end.num_finished - start.num_finished - self._num_requests
        return PinRun(
            base_url=base_url,
            model=self._facts.model,
            policy=self._facts.policy,
            block_size=self._facts.pool.block_size,
            num_blocks=self._facts.pool.num_blocks,
            gap_s=self._plan.gap_s,
            blocks_at_start=self._held(start),
            turns=turns,
            ttl_trial=trial,
            num_foreign_requests=max(num_foreign_finished, self._max_foreign_running),
        )

    def _wait_for_idle(self) -> Snapshot:
        deadline_s = time.monotonic() + _MAX_WAIT_FOR_IDLE_S
        while True:
            snapshot = self._server.snapshot()
            if not self._held(snapshot) or time.monotonic() > deadline_s:
                return snapshot
            time.sleep(READING_EVERY_S)

    def _five_turns(self) -> Iterator[TurnRow]:
        job_id = _new_job_id()
        block_size = self._facts.pool.block_size
        messages = [{"role": "system", "content": system_prompt(block_size)}]
        output = None
        try:
            for turn, script in enumerate(TURNS, start=1):
                prompt = script.user_prompt
                content = prompt if output is None else f"Output:\n{output}\n\n{prompt}"
                messages.append({"role": "user", "content": content})
                row = self._turn(turn, script, messages, job_id)
                self._on_row(row)
                yield row
                messages.append({"role": "assistant", "content": row.reply})
                output = simulated_output(script, block_size)
        finally:
            self._server.release(job_id)

    def _turn(
        self, turn: int, script: TurnScript, messages: list[dict[str, str]], job_id: str
    ) -> TurnRow:
        is_last_step = turn == len(TURNS)
        before = self._server.snapshot()
        reply = self._chat(messages, job_id, is_last_step=is_last_step)
        after = self._settled()
        gap = [] if is_last_step else self._read_gap()
        return TurnRow(
            turn=turn,
            user_prompt=script.user_prompt,
            reply=reply.text,
            usage=_usage(reply, before, after),
            latency_s=reply.latency_s,
            blocks_before=self._held(before),
            blocks_after=self._held(after),
            gap_blocks=tuple(self._held(snapshot) for snapshot in gap),
            is_last_step=is_last_step,
            happened=what_happened(
                before,
                after,
                gap[-1] if gap else after,
                self._facts.pool,
                is_last_step=is_last_step,
            ),
        )

    def _read_gap(self) -> list[Snapshot]:
        """Readings every 0.3 s and one at the gap's end."""
        started_s = time.monotonic()
        readings: list[Snapshot] = []
        is_over = False
        while not is_over:
            due_s = (len(readings) + 1) * READING_EVERY_S
            is_over = due_s >= self._plan.gap_s
            _sleep_until(started_s + min(due_s, self._plan.gap_s))
            readings.append(self._server.snapshot())
            self._note_running(readings[-1])
        return readings

    def _leave_to_ttl(self) -> TTLTrial:
        job_id = _new_job_id()
        messages = [
            {"role": "system", "content": system_prompt(self._facts.pool.block_size)},
            {"role": "user", "content": TURNS[0].user_prompt},
        ]
        before = self._held(self._server.snapshot())
        self._chat(messages, job_id, is_last_step=False)
        started_s = time.monotonic()
        ttl_s = self._server.ttl_left_s(job_id)
        snapshot = self._settled()
        after = at_end = self._held(snapshot)
        limit_s = _TTL_MARGIN_S + (self._plan.fallback_ttl_s if ttl_s is None else ttl_s)
        held_s = None
        while after > before and held_s is None and time.monotonic() - started_s < limit_s:
            time.sleep(_TTL_READING_EVERY_S)
            snapshot = self._server.snapshot()
            self._note_running(snapshot)
            at_end = self._held(snapshot)
            held_s = time.monotonic() - started_s if at_end <= before else None
        waited_s = time.monotonic() - started_s
        self._server.release(job_id)
        return TTLTrial(before, after, at_end, ttl_s, held_s, waited_s)

    def _chat(self, messages: list[dict[str, str]], job_id: str, *, is_last_step: bool) -> Reply:
        reply = self._server.chat(
            self._facts.model, messages, job_id=job_id, is_last_step=is_last_step
        )
        self._num_requests += 1
        return reply

    def _settled(self) -> Snapshot:
        time.sleep(_SETTLE_S)
        return self._server.snapshot()

    def _note_running(self, snapshot: Snapshot) -> None:
        """Between turns none of our requests runs, so whatever does is someone else's."""
        self._max_foreign_running = max(self._max_foreign_running, snapshot.num_unfinished)

    def _held(self, snapshot: Snapshot) -> int:
        return snapshot.held_blocks(self._facts.pool)


def _usage(reply: Reply, before: Snapshot, after: Snapshot) -> Usage:
    """Cached tokens come from the metrics where the reply does not tell them, as by default."""
    cached_tokens = reply.cached_tokens
    if cached_tokens is None:
        cached_tokens = after.cached_tokens - before.cached_tokens
    return Usage(reply.prompt_tokens, reply.output_tokens, cached_tokens)


def _new_job_id() -> str:
    return f"verify-pin-{uuid.uuid4().hex[:12]}"


def _sleep_until(due_s: float) -> None:
    time.sleep(max(0.0, due_s - time.monotonic()))
