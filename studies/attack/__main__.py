"""Attacks one client of a real server by another, and times the victim under several policies.

`python -m studies.attack --minutes 20 --out rows.json`: a server under each policy with two API
keys and 127 blocks of 32 tokens, all up all the time and one of them in use. Round by round, for
each attack: its traffic and a job of the victim under one policy, and at once under the next; every
other round begins with the last. The ratio to `fcfs` within a round is what counts, since other
load on the machine changes from minute to minute. Prompts are token ids, so lengths are exact.

The last line is one JSON document, also written with --out after every round. TERM ends the
servers. See README.md.
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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from agentkv.policies.names import server_policy
from agentkv.server.demo_model import prepare_demo_model
from agentkv.server.process import ServerProcess

STOCK = "fcfs"
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
    """One API key of a server, and the contexts of the jobs that it has opened."""

    def __init__(self, url: str, key: str) -> None:
        headers = {"Authorization": f"Bearer {key}"}
        limits = httpx.Limits(max_connections=100)
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=600.0, limits=limits)
        self.contexts: list[list[int]] = []

    async def turn(
        self, prompt: list[int], max_tokens: int, *, is_aborted: bool = False, **tags: Any
    ) -> list[int]:
        """One streamed completion; returns the prompt with what the model said, of which an
        aborted one reads the first piece."""
        body = {"model": "demo", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        options = {"ignore_eos": True, "return_token_ids": True, "stream": True}
        said: list[int] = []
        async with self._http.stream(
            "POST", "/v1/completions", json={**body, **options, **tags}
        ) as reply:
            reply.raise_for_status()
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    said += json.loads(line.removeprefix("data: "))["choices"][0]["token_ids"]
                    if is_aborted:
                        break
        return prompt + said

    async def open_jobs(self, number: int, num_tokens: int) -> None:
        """Play the first turns of jobs `job-0`, `job-1`, ..., and leave these idle."""
        for index in range(number):
            self.contexts.append(await self.turn(tokens(num_tokens), 1, job_id=f"job-{index}"))

    async def tool_finished(self, job_id: str) -> None:
        event = {"state": "finished", "command": "ls"}
        await self._http.post(f"/v1/agentkv/jobs/{job_id}/tool", json=event)

    async def poll(self, number: int) -> None:
        """Ask for this client's jobs, by a query that no other poll has; stock answers 404."""
        await self._http.get("/v1/agentkv/jobs", params={"x": number})

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


Act = Callable[[Client, int], Awaitable[object]]
"""What a client does at once; the number is another one each time."""


async def go_on(attacker: Client, number: int) -> None:
    """One more token for a context that fills a fifth of the pool."""
    index = number % len(attacker.contexts)
    context = await attacker.turn(attacker.contexts[index], 1, job_id=f"job-{index}")
    attacker.contexts[index] = context


async def go_on_untagged(attacker: Client, number: int) -> None:
    context = await attacker.turn(tokens(640), REPLY_TOKENS)
    await attacker.turn(context + tokens(TOOL_RESULT_TOKENS), REPLY_TOKENS)


async def hang_up(attacker: Client, number: int) -> None:
    """A new job that would need a third of the pool, and leaves."""
    with suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            await attacker.turn(tokens(1500), REPLY_TOKENS, job_id=f"burst-{number}")


@dataclass(frozen=True, slots=True)
class Attack:
    """Connections of the attacker's that each do one thing again and again."""

    act: Act
    num_connections: int = 8
    num_jobs: int = 0
    """Jobs of one turn of `job_tokens` that the attacker has opened before."""
    job_tokens: int = 0
    num_decodes: int = 0
    """Connections in addition, so that the engine always has something to do."""
    pause_s: float = 0.0

    @asynccontextmanager
    async def under_way(self, attacker: Client) -> AsyncIterator[None]:
        """The attack goes on inside the block."""
        numbers = itertools.count()

        async def repeat(act: Act, pause_s: float = 0.0) -> None:
            while True:
                with suppress(httpx.TransportError):  # a busy server may close an idle connection
                    await act(attacker, next(numbers))
                await asyncio.sleep(pause_s)

        await attacker.open_jobs(self.num_jobs, self.job_tokens)
        loops = [repeat(self.act, self.pause_s) for _ in range(self.num_connections)]
        loops += [
            repeat(lambda client, _: client.turn(tokens(20), 120)) for _ in range(self.num_decodes)
        ]
        tasks = [asyncio.create_task(loop) for loop in loops]
        try:
            await asyncio.sleep(HEAD_START_S)
            yield
        finally:
            failed = [task.exception() for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if failed:
            raise RuntimeError(f"{len(failed)} parts of the attack ended early") from failed[0]


_with_idle_jobs = partial(
    Attack, num_connections=5, num_jobs=5, job_tokens=730, num_decodes=2, pause_s=2.0
)
ATTACKS = {
    "aborted-streams": Attack(
        lambda client, number: client.turn(
            tokens(680), 500, is_aborted=True, job_id=f"aborted-{number}"
        )
    ),
    "held-contexts": _with_idle_jobs(go_on),
    "renewed-leases": Attack(
        lambda client, number: client.turn(tokens(20), 1, job_id=f"job-{number % 40}"),
        num_connections=40,
        num_jobs=40,
        job_tokens=90,
    ),
    "tool-signals": _with_idle_jobs(
        lambda client, number: client.tool_finished(f"job-{number % 5}")
    ),
    "cached-prompts": Attack(
        lambda client, number: client.turn(
            client.contexts[0] + tokens(20), REPLY_TOKENS, job_id=f"long-{number}"
        ),
        num_connections=40,
        num_jobs=1,
        job_tokens=1500,
    ),
    "decodes": Attack(
        lambda client, number: client.turn(tokens(20), 2000, job_id=f"decode-{number}"),
        num_connections=40,
    ),
    "untagged": Attack(go_on_untagged),
    "priorities": Attack(
        lambda client, number: client.turn(
            *(tokens(680), REPLY_TOKENS),
            job_id=f"sub-{number}",
            parent_job_id="job-0",
            priority=-100,
        ),
        num_jobs=1,
        job_tokens=60,
    ),
    "bursts": Attack(hang_up),
    "polls": Attack(Client.poll, num_connections=40, num_jobs=200, job_tokens=1),
}
"""The ten attacks of README.md."""


async def victims_job_s(url: str, attack: Attack, cap_s: float) -> float | None:
    """Seconds of the turns of a new job under an attack; None if they are not over by `cap_s`."""
    attacker, victim = Client(url, ATTACKER), Client(url, VICTIM)
    job_s = None
    async with attack.under_way(attacker):
        began_s = time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(cap_s):
                prompt = tokens(VICTIM_PROMPT_TOKENS)
                for turn in range(VICTIM_TURNS):
                    prompt = await victim.turn(prompt, REPLY_TOKENS, job_id="victim", turn=turn + 1)
                    prompt += tokens(TOOL_RESULT_TOKENS)
                job_s = round(time.monotonic() - began_s, 2)
    await victim.end()
    await attacker.end()
    return job_s


def summarize(rows: Sequence[Mapping[str, Any]], cap_s: float) -> dict[str, Any]:
    """For each attack and policy the ratios to stock, in which a job that did not end counts as
    `cap_s`: too much under stock, so that the ratio is smaller, and too little under the policy."""
    found: dict[str, Any] = {}
    for attack in dict.fromkeys(row["attack"] for row in rows):
        jobs = [row["job_s"] for row in rows if row["attack"] == attack]
        for policy in (name for name in jobs[0] if name != STOCK):
            pairs = [(job[policy], job[STOCK]) for job in jobs]
            ratios = [(ours_s or cap_s) / (stock_s or cap_s) for ours_s, stock_s in pairs]
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            ended = {name: sum(job[name] is not None for job in jobs) for name in (policy, STOCK)}
            found.setdefault(attack, {})[policy] = {
                "pairs": len(pairs),
                "ended": ended,
                "ratio": round(mean, 3),
                "ratio_of_pairs": [round(ratio, 2) for ratio in sorted(ratios)],
                "is_within_goal": mean <= GOAL and ended[policy] == len(pairs),
            }
    return found


def rounds(
    urls: Mapping[str, str], attacks: Sequence[str], cap_s: float, ends_s: float
) -> Iterator[dict[str, Any]]:
    """Each attack under each policy, again and again; after `ends_s` no attack of a second round
    begins."""
    for number, attack in ((number, name) for number in itertools.count() for name in attacks):
        if number and time.monotonic() > ends_s:
            return
        order = list(urls) if number % 2 == 0 else list(urls)[::-1]
        job_s = {
            name: asyncio.run(victims_job_s(urls[name], ATTACKS[attack], cap_s)) for name in order
        }
        yield {"attack": attack, "load": round(os.getloadavg()[0], 1), "job_s": job_s}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.attack", description=__doc__)
    parser.add_argument("--attack", action="append", choices=ATTACKS, help="default: all")
    parser.add_argument(
        "--policy",
        action="append",
        type=server_policy,
        help="compared with fcfs, as `agentkv bench` takes it; default: agentkv",
    )
    parser.add_argument("--minutes", type=float, default=20.0, help="no second round after these")
    parser.add_argument("--cap-s", type=float, default=100.0, help="a victim's job is left then")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ends_s = time.monotonic() + 60 * given.minutes
    policies = [*(given.policy or [server_policy("agentkv")]), server_policy(STOCK)]
    rows: list[dict[str, Any]] = []
    document = ""
    with ExitStack() as stack:
        urls = {
            choice.name: stack.enter_context(
                ServerProcess(
                    prepare_demo_model(),
                    policy=choice.scheduling_policy,
                    args=(*SERVER_ARGS, *choice.flags()),
                )
            ).root_url
            for choice in policies
        }
        attacks = given.attack or list(ATTACKS)
        for row in rounds(urls, attacks, given.cap_s, ends_s):
            rows.append(row)
            print(json.dumps(row), flush=True)
            summary = {"cap_s": given.cap_s, "attacks": summarize(rows, given.cap_s), "rows": rows}
            document = json.dumps(summary)
            if given.out is not None:
                given.out.write_text(document + "\n", encoding="utf-8")
    print(document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
