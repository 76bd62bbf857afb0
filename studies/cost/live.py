"""What the live page costs each second: in the engine, and in the API server with five viewers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from time import process_time
from typing import Any

import msgspec
from starlette.types import Message

from agentkv.events import ToolEnded
from agentkv.integrations.vllm.api import engine_side
from agentkv.integrations.vllm.api.engine_client import EngineLink
from agentkv.integrations.vllm.api.live import LiveHub
from agentkv.protocol import JobKey
from tests.stepped_engine import SteppedEngine, prompt_of

from .rows import Row, samples_row

NUM_JOBS = 200
NUM_VIEWERS = 5
NUM_SNAPSHOTS = 200
EVENTS_EACH = 100
"""Events between two snapshots: a busy server's."""
MAX_SHARE = 1.0
"""Percent of a core: issue 26's bound."""


def measure() -> Iterator[Row]:
    """Processor time of a snapshot, at one a second as percent of a core."""
    engine = SteppedEngine(
        policy="agentkv", num_blocks=NUM_JOBS * 10, prefill_reload_s=[0.0, 10.0, 0.0]
    )
    for index in range(NUM_JOBS):
        engine.turn(prompt_of(100, salt=index), job_id=f"job-{index}", expected_turns=20)
    shares: list[float] = []
    answers: list[bytes] = []
    for _ in range(NUM_SNAPSHOTS):
        views: list[Any] = [(None, {"0": engine.scheduler.watchers.log.now_s})]
        for index in range(EVENTS_EACH):
            engine.clock.now_s += 1e-3
            event = ToolEnded(JobKey("", f"job-{index}"), "pytest", "pytest", 1.5)
            engine.scheduler.watchers.log.on_event(event)
        began_s = process_time()
        answer = engine_side.call(engine.scheduler, "live", [views])
        asked = [(None, key) for key in answer["views"][0].pop("more")]
        answer["views"][0]["jobs"] += engine_side.call(engine.scheduler, "watched", [asked])
        shares.append(100 * (process_time() - began_s))
        answers.append(msgspec.msgpack.encode(answer))
    detail = f"{NUM_JOBS} jobs, {EVENTS_EACH} events, {len(answers[-1]) / 1e3:.0f} kB"
    yield samples_row("live page: engine", shares, "% of a core", MAX_SHARE, detail)
    shares = asyncio.run(_serve(answers))
    detail = f"{NUM_VIEWERS} viewers of {NUM_JOBS} jobs, without the sockets"
    yield samples_row("live page: API server", shares, "% of a core", MAX_SHARE, detail)


async def _serve(answers: list[bytes]) -> list[float]:
    """Percent of a core between two snapshots, at one a second, for a hub that sends them all."""

    class Engine(EngineLink):
        async def call(self, operation: str, *args: Any) -> list[Any]:
            marks_s.append(process_time())
            if len(marks_s) > len(answers):
                has_sent_all.set()
            return [msgspec.msgpack.decode(answers[(len(marks_s) - 1) % len(answers)])]

    async def receive() -> Message:
        await has_sent_all.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        pass

    marks_s: list[float] = []
    has_sent_all = asyncio.Event()
    hub = LiveHub(Engine(None), interval_s=0.001)
    streams = [hub.stream("", sees_all=True) for _ in range(NUM_VIEWERS)]
    await asyncio.gather(*(stream({"type": "http"}, receive, send) for stream in streams))
    return [100 * (later - earlier) for earlier, later in pairwise(marks_s)]
