"""What a viewer of the live page costs the engine each second."""

from __future__ import annotations

from collections.abc import Iterator
from time import process_time

import msgspec

from agentkv.events import ToolEnded
from agentkv.integrations.vllm.api import engine_side
from agentkv.integrations.vllm.api.engine_client import JOBS_AT_ONCE
from agentkv.protocol import JobKey
from tests.stepped_engine import SteppedEngine, prompt_of

from .rows import Row, samples_row

NUM_JOBS = 200
NUM_SNAPSHOTS = 200
EVENTS_EACH = 100
"""Events between two snapshots: a busy server's."""
MAX_SHARE = 1.0
"""Percent of a core."""


def measure() -> Iterator[Row]:
    """Processor time of a snapshot, at one a second as percent of a core."""
    engine = SteppedEngine(
        policy="agentkv", num_blocks=NUM_JOBS * 10, prefill_reload_s=[0.0, 10.0, 0.0]
    )
    for index in range(NUM_JOBS):
        engine.turn(prompt_of(100, salt=index), job_id=f"job-{index}", expected_turns=20)
    shares: list[float] = []
    for _ in range(NUM_SNAPSHOTS):
        seen_s = {"0": engine.scheduler.watchers.log.now_s}
        for index in range(EVENTS_EACH):
            engine.clock.now_s += 1e-3
            event = ToolEnded(JobKey("", f"job-{index}"), "pytest", "pytest", 1.5)
            engine.scheduler.watchers.log.on_event(event)
        began_s = process_time()
        answer = engine_side.call(engine.scheduler, "live", [None, seen_s])
        jobs = []
        for start in range(0, len(answer["keys"]), JOBS_AT_ONCE):
            keys = answer["keys"][start : start + JOBS_AT_ONCE]
            jobs += engine_side.call(engine.scheduler, "jobs", [None, keys])
        shares.append(100 * (process_time() - began_s))
    num_bytes = len(msgspec.msgpack.encode((answer, jobs)))
    detail = f"{NUM_JOBS} jobs, {EVENTS_EACH} events, {num_bytes / 1e3:.0f} kB"
    yield samples_row("live page: engine", shares, "% of a core", MAX_SHARE, detail)
