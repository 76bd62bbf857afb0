"""How much memory the engine's histories take when all are full, by tracemalloc.

Filled through the same calls that the plugin makes: once with the names and commands of a usual
agent, once with the longest ones a client may send.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import random
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from agentkv.durations.ttl import (
    GLOBAL_WINDOW,
    MAX_TOOLS,
    QUEUEING_WINDOW,
    TOOL_WINDOW,
    DurationWindow,
    Memoryfulness,
    ToolDurations,
)
from agentkv.integrations.vllm.policy.costs import WINDOW, Step, StepFit
from agentkv.integrations.vllm.policy.jobs import Context
from agentkv.integrations.vllm.retention.manager import Retention
from agentkv.integrations.vllm.settings import Settings
from agentkv.integrations.vllm.telemetry.counters import MAX_PENDING_OBSERVATIONS, Counters
from agentkv.protocol import MAX_ID_CHARS, MAX_TOOL_CHARS, Tags, ToolEvent

from .side_by_side import Row

MIB = 2**20
CONTEXT_BLOCKS, BLOCK_TOKENS = 32, 16
NUM_BLOCKS = 10_000


@dataclass(frozen=True, slots=True)
class Text:
    """The strings that a client sends."""

    name: str
    filler: str
    id_chars: int
    command_chars: int

    def job_id(self, number: int) -> str:
        return f"job{number}".ljust(self.id_chars, self.filler)

    def command(self, number: int) -> str:
        return f"tool{number % MAX_TOOLS}".ljust(self.command_chars, self.filler)


USUAL = Text("usual text", "x", id_chars=32, command_chars=80)
LONGEST = Text("longest text", "\N{SNAKE}", id_chars=MAX_ID_CHARS, command_chars=MAX_TOOL_CHARS)


def measure(seed: int) -> Iterator[Row]:
    """A row per history, and one for a whole engine's under each kind of text."""
    chance = random.Random(seed)
    histories: tuple[tuple[str, Callable[[random.Random], object], float], ...] = (
        ("tool durations", _tool_durations, 4.0),
        ("queueing delays, job lengths", _delays_and_lengths, 0.5),
        ("steps", _steps, 0.1),
        ("counters between two reports", _counters, 0.5),
    )
    for name, fill, limit_mib in histories:
        yield _row(f"memory: {name}, full", partial(fill, chance), limit_mib)
    for policy, text, limit_mib in (
        ("continuum", USUAL, 64.0),
        ("continuum", LONGEST, 256.0),
        ("context_serve", USUAL, 128.0),
        ("context_serve", LONGEST, 384.0),
    ):
        settings = Settings.model_validate({"policy": policy})
        name = (
            f"memory: {policy}, {settings.max_jobs:,} jobs and {settings.record_events:,} "
            f"events, {text.name}"
        )
        yield _row(name, partial(full_engine, text, settings, chance), limit_mib)


def _row(name: str, fill: Callable[[], object], limit_mib: float) -> Row:
    gc.collect()
    tracemalloc.start()
    filled = fill()
    gc.collect()
    size_mib = tracemalloc.get_traced_memory()[0] / MIB
    tracemalloc.stop()
    del filled
    return Row(name, size_mib, "MiB", size_mib, size_mib, 1, limit_mib)


def _tool_durations(chance: random.Random) -> ToolDurations:
    durations = ToolDurations()
    for tool in range(MAX_TOOLS + 10):
        for _ in range(TOOL_WINDOW + 10):
            durations.observe(f"tool{tool}", chance.random())
    assert len(durations.over_all) == GLOBAL_WINDOW
    return durations


def _delays_and_lengths(chance: random.Random) -> object:
    delays, lengths = DurationWindow(QUEUEING_WINDOW), Memoryfulness()
    for _ in range(5000):
        delays.observe(chance.random())
        lengths.observe(chance.randrange(1, 1000))
    return delays, lengths


def _steps(chance: random.Random) -> StepFit:
    fit = StepFit()
    for _ in range(2 * WINDOW):
        num_new = chance.randrange(1000, 100_000)
        fit.observe(Step(num_new, num_new**2, num_new, 0.0), chance.random())
    return fit


def _counters(chance: random.Random) -> Counters:
    counters = Counters()
    for _ in range(MAX_PENDING_OBSERVATIONS + 10):
        for name in ("tool_duration_seconds", "pin_ttl_seconds", "pin_held_seconds"):
            counters.observe(name, chance.random())
    return counters


def full_engine(text: Text, settings: Settings, chance: random.Random) -> Retention:
    """All that one engine remembers: as many jobs as it can, and tool signals until it forgets."""
    seconds = itertools.count()
    retention = Retention(
        settings,
        num_blocks=NUM_BLOCKS,
        block_tokens=BLOCK_TOKENS,
        clock=lambda: next(seconds) * 1e-3,
        free=lambda blocks, fence: None,
        on_rank_change=lambda job_id: None,
        on_deadline=lambda deadline_s: None,
    )
    for number in range(settings.max_jobs + 100):
        job_id = text.job_id(number)
        _turn(retention, job_id, chance.randbytes(8))
        _run_tool(retention, job_id, text.command(number), chance.random())
    if text is LONGEST:
        for number in range(settings.record_events // 2):
            _run_tool(retention, text.job_id(number % 9 + 200), text.command(number), 1.0)
    assert len(retention.jobs) >= settings.max_jobs
    return retention


def _run_tool(retention: Retention, job_id: str, command: str, duration_s: float) -> None:
    # Sliced apart, since each of the two arrives as a string of its own.
    retention.tool_signal(job_id, ToolEvent("started", command=command[:-1]))
    retention.tool_signal(
        job_id, ToolEvent("finished", command=command[:-2], duration_s=duration_s)
    )


def _turn(retention: Retention, job_id: str, salt: bytes) -> None:
    hashes = [hashlib.sha256(salt + bytes([index])).digest() for index in range(CONTEXT_BLOCKS)]
    request_id = f"{job_id}-turn"
    retention.turn_arrived(
        request_id,
        Tags(job_id=job_id, parent_job_id=f"{job_id[:-1]}p", turn=1),
        num_prompt_tokens=BLOCK_TOKENS * CONTEXT_BLOCKS,
        block_hashes=hashes,
    )
    retention.turn_admitted(request_id, hit_tokens=0)
    retention.turn_ended(
        request_id,
        is_finished_turn=True,
        context=Context(hashes, CONTEXT_BLOCKS, BLOCK_TOKENS),
        blocks=[object()],
    )
