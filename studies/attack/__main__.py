"""Attacks one client of a real server by another, and times the victim under two policies.

`python -m studies.attack --attack idle --attack sub-agents`: for each policy a server with two API
keys and 127 blocks of 32 tokens; the attacker's traffic, then also the victim's turns. The
last line is one JSON document, also written with --out. See README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from agentkv.server.demo_model import prepare_demo_model
from agentkv.server.process import ServerProcess

ATTACKER, VICTIM = "key-of-the-attacker", "key-of-the-victim"
SERVER_ARGS = (
    *("--max-model-len", "2048", "--block-size", "32", "--num-gpu-blocks-override", "128"),
    *("--served-model-name", "demo", "--api-key", ATTACKER, VICTIM),
)
TOKENS_PER_WORD = 2.2
"""Of the made-up words of `text_of` with the demo model's tokenizer, roughly."""
VICTIM_TURNS = 3
_numbers = itertools.count()


def text_of(num_tokens: int) -> str:
    """A prompt that no other one shares a prefix with."""
    start = next(_numbers) * 1000
    return " ".join(f"w{start + index}" for index in range(round(num_tokens / TOKENS_PER_WORD / 2)))


class Client:
    """One API key of a server."""

    def __init__(self, url: str, key: str) -> None:
        headers = {"Authorization": f"Bearer {key}"}
        limits = httpx.Limits(max_connections=100)
        self.http = httpx.AsyncClient(base_url=url, headers=headers, timeout=600.0, limits=limits)

    async def turn(self, prompt: str, max_tokens: int, **tags: Any) -> str:
        """One completion; returns the prompt with what the model said."""
        body = {"model": "demo", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        reply = await self.http.post("/v1/completions", json={**body, "ignore_eos": True, **tags})
        reply.raise_for_status()
        return prompt + str(reply.json()["choices"][0]["text"])

    async def signal(self, job_id: str) -> None:
        event = {"state": "finished", "command": "ls"}
        await self.http.post(f"/v1/agentkv/jobs/{job_id}/tool", json=event)


async def for_ever(act: Callable[[], Awaitable[object]], pause_s: float = 0.0) -> None:
    while True:
        await act()
        await asyncio.sleep(pause_s)


@asynccontextmanager
async def idle(attacker: Client) -> AsyncIterator[None]:
    """F1: five jobs of one turn whose tools finish for ever, and two decodes that overlap."""
    ids = [f"idle-{number}" for number in range(5)]
    for job_id in ids:
        await attacker.turn(text_of(730), 1, job_id=job_id)
    acts = [for_ever(lambda: attacker.turn(text_of(20), 120)) for _ in range(2)]
    acts += [for_ever(partial(attacker.signal, job_id), 2.0) for job_id in ids]
    async with running(acts):
        yield


@asynccontextmanager
async def sub_agents(attacker: Client) -> AsyncIterator[None]:
    """F2: eight clients, each in a loop one new sub-agent of one old job."""
    await attacker.turn(text_of(60), 1, job_id="parent")
    numbers = itertools.count()

    async def spawn() -> None:
        tags = {"job_id": f"sub-{next(numbers)}", "parent_job_id": "parent", "priority": 0}
        await attacker.turn(text_of(680), 20, **tags)

    async with running([for_ever(spawn) for _ in range(8)]):
        yield


@asynccontextmanager
async def flood(attacker: Client) -> AsyncIterator[None]:
    """F6: forty connections, each in a loop a job of one token."""
    numbers = itertools.count()

    async def open_job() -> None:
        await attacker.turn("hello", 1, job_id=f"flood-{next(numbers)}")

    async with running([for_ever(open_job) for _ in range(40)]):
        yield


@asynccontextmanager
async def running(acts: list[Any]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(act) for act in acts]
    await asyncio.sleep(5.0)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


ATTACKS = {"idle": idle, "sub-agents": sub_agents, "flood": flood}


async def victims_turns(victim: Client, number: int) -> list[float]:
    """Seconds of each turn of a new job of about 650 tokens."""
    prompt, seconds = text_of(650), []
    for turn in range(VICTIM_TURNS):
        began_s = time.monotonic()
        prompt = await victim.turn(prompt, 20, job_id=f"victim-{number}", turn=turn + 1)
        seconds.append(round(time.monotonic() - began_s, 2))
        prompt += " " + text_of(40)
    return seconds


async def measure(url: str, attack: str, repeats: int) -> dict[str, Any]:
    attacker, victim = Client(url, ATTACKER), Client(url, VICTIM)
    row: dict[str, Any] = {"quiet_s": await victims_turns(victim, -1), "turns_s": []}
    async with ATTACKS[attack](attacker):
        for number in range(repeats):
            row["turns_s"].append(await victims_turns(victim, number))
    row["mean_s"] = round(sum(map(sum, row["turns_s"])) / repeats, 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.attack", description=__doc__)
    parser.add_argument("--attack", action="append", choices=ATTACKS, required=True)
    parser.add_argument("--policy", action="append", default=None)
    parser.add_argument("--repeats", type=int, default=3, help="jobs of the victim, one by one")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {attack: {} for attack in given.attack}
    for policy in given.policy or ["agentkv", "fcfs"]:
        for attack in given.attack:
            with ServerProcess(prepare_demo_model(), policy=policy, args=SERVER_ARGS) as server:
                rows[attack][policy] = asyncio.run(measure(server.root_url, attack, given.repeats))
            print(attack, policy, json.dumps(rows[attack][policy]), flush=True)
    for by_policy in rows.values():
        if {"agentkv", "fcfs"} <= by_policy.keys():
            ratio = by_policy["agentkv"]["mean_s"] / by_policy["fcfs"]["mean_s"]
            by_policy["slowdown"] = round(ratio, 2)
    document = json.dumps(rows)
    if given.out is not None:
        given.out.write_text(document + "\n", encoding="utf-8")
    print(document)


if __name__ == "__main__":
    main()
