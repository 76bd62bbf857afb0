"""What clients send, with a key or without, leaves no memory behind in API servers and engines."""

import gc
import tracemalloc
import urllib.parse
from collections import Counter, deque
from collections.abc import Awaitable, Callable

import httpx
import pytest

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
async def test_no_salt_stays_in_the_engine() -> None:
    """What the watchers remember of a job that is over has a bounded size, however long the salts
    of its turns were."""
    engine = Engine(num_blocks=64, infer_jobs=False)

    async def turn(text: str) -> None:
        engine.turn(prompt_of(8), job_id=f"j{len(engine.events)}", cache_salt=text, max_tokens=1)

    assert await kept_bytes(turn) < 3 * MAX_KEPT_BYTES  # events of 200 jobs among it


def sizes_below(root: object, path: str = "", seen: set[int] | None = None) -> Counter[str]:
    """Entries of each container below an object of ours, by the names that lead to it."""
    seen = set() if seen is None else seen
    found: Counter[str] = Counter()
    below: dict[str, object] = {}
    if id(root) in seen:
        return found
    seen.add(id(root))
    if isinstance(root, dict | list | set | deque):
        found[path] += len(root)
        below = dict(enumerate(root.values() if isinstance(root, dict) else root))
    elif type(root).__module__.startswith("agentkv"):
        slots = [name for each in type(root).__mro__ for name in getattr(each, "__slots__", ())]
        below = {name: getattr(root, name, None) for name in slots} | getattr(root, "__dict__", {})
    for name, thing in below.items():
        found += sizes_below(thing, path if isinstance(name, int) else f"{path}.{name}", seen)
    return found


def test_jobs_of_one_turn_leave_nothing_behind() -> None:
    """Of 3,000 sessions whose lease is over only what is remembered of ended jobs is left."""
    engine = Engine(policy="agentkv", num_blocks=257, job_lease_s=3000.0, record_events=500)
    found = []
    for numbers in (range(3), range(3, 3003), range(3003, 3006)):
        for number in numbers:
            engine.turn(prompt_of(40, salt=number), job_id=f"s{number}", max_tokens=1)
        engine.wait(3600.0)
        parts = engine.retention, engine.scheduler.watchers
        found.append(sum(map(sizes_below, parts), Counter()))
    grown = {name for name, size in (found[2] - found[0]).items() if size > 20}
    assert {name.split(".")[1] for name in grown if found[2][name] > 1024} == {"misses"}
