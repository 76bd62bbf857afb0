"""What clients send, with a key or without, leaves no memory behind in API servers and engines."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from agentkv.integrations.vllm.api.engine_client import MAX_QUESTIONS, SharedAnswers
from tests.integrations.vllm.api.fake_engine import make_app
from tests.integrations.vllm.harness import Engine
from tests.stepped_engine import prompt_of

NUM_TEXTS, TEXT_BYTES = 200, 30_000
"""Texts that a client sends, together 6 MB."""
MAX_KEPT_BYTES = 600_000


async def kept_bytes(send: Callable[[str], Awaitable[object]]) -> int:
    """Bytes that are still in use once NUM_TEXTS different texts were sent."""
    await send("warm")
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(NUM_TEXTS):
            await send(f"{number:0{TEXT_BYTES}}")
        urllib.parse.clear_cache()  # the standard library keeps the last 128 addresses
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["ui/{}", "ui{}", "{}", "jobs/{}", "explain?job={}"])
async def test_no_path_stays(path: str) -> None:
    """Neither a file of the page that there is not, nor a question that nobody asks again."""
    app = make_app({"job": lambda *_: None, "keys_to_explain": lambda *_: []})
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        url = f"/v1/agentkv/{path}"
        await client.get("/v1/agentkv/ui")
        assert await kept_bytes(lambda text: client.get(url.format(text))) < MAX_KEPT_BYTES


@pytest.mark.asyncio
async def test_questions_are_forgotten() -> None:
    """Of many that come at once the last MAX_QUESTIONS are known, by their hashes."""
    answers = SharedAnswers()

    async def answer() -> Any:
        return None

    await asyncio.gather(*(answers.get(("a", n), answer) for n in range(2 * MAX_QUESTIONS)))
    assert (len(answers._next_s), len(answers._waiting)) == (MAX_QUESTIONS, 0)
    assert {len(question) for question in answers._next_s} == {16}


@pytest.mark.asyncio
async def test_no_salt_stays_in_the_engine() -> None:
    """What the watchers remember of a job that is over has a bounded size, however long the salts
    of its turns were."""
    engine = Engine(num_blocks=64, infer_jobs=False)

    async def turn(text: str) -> None:
        engine.turn(prompt_of(8), job_id=f"j{len(engine.events)}", cache_salt=text, max_tokens=1)

    assert await kept_bytes(turn) < 3 * MAX_KEPT_BYTES  # events of 200 jobs among it
