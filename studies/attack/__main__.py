"""Attacks one client of a real server by another, and times the victim under two policies.

`python -m studies.attack --minutes 8 --out rows.json`: a server under each policy with two API keys
and 127 blocks of 32 tokens, both up all the time and one of them in use. Round by round, for each
attack: its traffic and a job of the victim under the one policy, and at once under the other; which
is first alternates. The ratio of such a pair is what counts, since other load on the machine
changes from minute to minute. Prompts are token ids, so their lengths are exact.

The last line is one JSON document, also written with --out after every pair. TERM ends the servers.
See README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
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
VICTIM_TURNS = 3
VICTIM_PROMPT_TOKENS, TOOL_RESULT_TOKENS, REPLY_TOKENS = 650, 40, 20
HEAD_START_S = 5.0
"""For this long the attack goes on before the victim's job begins."""
GOAL = 1.25
_dice = random.Random(0)


def tokens(number: int) -> list[int]:
    """A prompt of ordinary tokens that no other one shares a prefix with."""
    return _dice.choices(range(1000, 40_000), k=number)


class Client:
    """One API key of a server."""

    def __init__(self, url: str, key: str) -> None:
        headers = {"Authorization": f"Bearer {key}"}
        limits = httpx.Limits(max_connections=100)
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=600.0, limits=limits)

    async def turn(self, prompt: list[int], max_tokens: int, **tags: Any) -> list[int]:
        """One completion; returns the prompt with what the model said."""
        body = {"model": "demo", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        options = {"ignore_eos": True, "return_token_ids": True}
        reply = await self._http.post("/v1/completions", json={**body, **options, **tags})
        reply.raise_for_status()
        return prompt + list(reply.json()["choices"][0]["token_ids"])

    async def signal(self, job_id: str) -> None:
        event = {"state": "finished", "command": "ls"}
        await self._http.post(f"/v1/agentkv/jobs/{job_id}/tool", json=event)

    async def end(self) -> None:
        """Release this client's jobs, and wait until the server has nothing to do."""
        listed = await self._http.get("/v1/agentkv/jobs")
        for job in listed.json()["jobs"] if listed.is_success else ():
            await self._http.post(f"/v1/agentkv/jobs/{job['job_id']}/release")
        while await self._is_busy():
            await asyncio.sleep(0.1)
        await self._http.aclose()

    async def _is_busy(self) -> bool:
        lines = (await self._http.get("/metrics")).text.splitlines()
        names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
        return any(float(line.split()[-1]) for line in lines if line.startswith(names))


async def for_ever(act: Callable[[], Awaitable[object]], pause_s: float = 0.0) -> None:
    while True:
        await act()
        await asyncio.sleep(pause_s)


@asynccontextmanager
async def idle(attacker: Client) -> AsyncIterator[None]:
    """F1: five jobs of one turn whose tools finish for ever, and two decodes that overlap."""
    ids = [f"idle-{number}" for number in range(5)]
    for job_id in ids:
        await attacker.turn(tokens(730), 1, job_id=job_id)
    acts = [for_ever(lambda: attacker.turn(tokens(20), 120)) for _ in range(2)]
    acts += [for_ever(partial(attacker.signal, job_id), 2.0) for job_id in ids]
    async with running(acts):
        yield


@asynccontextmanager
async def sub_agents(attacker: Client) -> AsyncIterator[None]:
    """F2: eight connections, each in a loop one new sub-agent of one old job."""
    await attacker.turn(tokens(60), 1, job_id="parent")
    numbers = itertools.count()

    async def spawn() -> None:
        tags = {"job_id": f"sub-{next(numbers)}", "parent_job_id": "parent", "priority": 0}
        await attacker.turn(tokens(680), REPLY_TOKENS, **tags)

    async with running([for_ever(spawn) for _ in range(8)]):
        yield


@asynccontextmanager
async def flood(attacker: Client) -> AsyncIterator[None]:
    """F6: forty connections, each in a loop a job of one token."""
    numbers = itertools.count()

    async def open_job() -> None:
        await attacker.turn(tokens(1), 1, job_id=f"flood-{next(numbers)}")

    async with running([for_ever(open_job) for _ in range(40)]):
        yield


@asynccontextmanager
async def running(acts: list[Any]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(act) for act in acts]
    await asyncio.sleep(HEAD_START_S)
    try:
        yield
    finally:
        failed = [task.exception() for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if failed:
        raise RuntimeError(f"{len(failed)} parts of the attack ended early") from failed[0]


ATTACKS = {"idle": idle, "sub-agents": sub_agents, "flood": flood}


async def victims_turns(url: str, attack: str) -> list[float]:
    """Seconds of each turn of a new job under an attack, one after the other."""
    attacker, victim = Client(url, ATTACKER), Client(url, VICTIM)
    seconds = []
    async with ATTACKS[attack](attacker):
        prompt = tokens(VICTIM_PROMPT_TOKENS)
        for turn in range(VICTIM_TURNS):
            began_s = time.monotonic()
            prompt = await victim.turn(prompt, REPLY_TOKENS, job_id="victim", turn=turn + 1)
            seconds.append(round(time.monotonic() - began_s, 2))
            prompt += tokens(TOOL_RESULT_TOKENS)
    await victim.end()
    await attacker.end()
    return seconds


def summarize(rows: list[dict[str, Any]], policies: tuple[str, str]) -> dict[str, Any]:
    """For each attack the pairs, and the ratio of the first policy to the second over them."""
    found: dict[str, Any] = {}
    for attack in dict.fromkeys(row["attack"] for row in rows):
        job_s = [
            {policy: sum(row["turns_s"][policy]) for policy in policies}
            for row in rows
            if row["attack"] == attack
        ]
        ratios = [pair[policies[0]] / pair[policies[1]] for pair in job_s]
        found[attack] = {
            "pairs": len(ratios),
            "ratio": round(math.exp(sum(map(math.log, ratios)) / len(ratios)), 3),
            "ratio_of_pairs": [round(ratio, 2) for ratio in sorted(ratios)],
            "mean_job_s": {
                policy: round(sum(pair[policy] for pair in job_s) / len(job_s), 2)
                for policy in policies
            },
            "is_within_goal": sum(map(math.log, ratios)) / len(ratios) <= math.log(GOAL),
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.attack", description=__doc__)
    parser.add_argument("--attack", action="append", choices=ATTACKS, help="default: all")
    parser.add_argument("--policy", default="agentkv", help="compared with fcfs")
    parser.add_argument("--minutes", type=float, default=8.0, help="no pair begins after these")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ends_s = time.monotonic() + 60 * given.minutes
    policies = (given.policy, "fcfs")
    rows: list[dict[str, Any]] = []
    longest_s = 0.0
    with ExitStack() as stack:
        urls = {
            policy: stack.enter_context(
                ServerProcess(prepare_demo_model(), policy=policy, args=SERVER_ARGS)
            ).root_url
            for policy in policies
        }
        attacks = given.attack or list(ATTACKS)
        for number, attack in enumerate(itertools.cycle(attacks)):
            began_s = time.monotonic()
            if began_s + longest_s > ends_s and number >= len(attacks):
                break
            order = policies if (number // len(attacks)) % 2 == 0 else policies[::-1]
            turns_s = {policy: asyncio.run(victims_turns(urls[policy], attack)) for policy in order}
            longest_s = max(longest_s, time.monotonic() - began_s)
            rows.append({"attack": attack, "load": os.getloadavg()[0], "turns_s": turns_s})
            print(attack, json.dumps(turns_s), flush=True)
            document = json.dumps({"attacks": summarize(rows, policies), "rows": rows})
            if given.out is not None:
                given.out.write_text(document + "\n", encoding="utf-8")
    print(document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
