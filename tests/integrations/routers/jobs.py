"""Plays jobs through a router by agentkv's client, and says what reached each server."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai

import agentkv
from agentkv.server.process import HTTPProcess, ServerProcess
from tests.integrations.routers.routers import API_KEY, MODEL
from tests.server.chat import LIMIT_S, WORDS

NUM_TURNS, AT_ONCE = 4, 5
BLOCK_TOKENS = 32


@dataclass
class Played:
    """What a job's client saw: per turn its prompt tokens, those that were cached, and seconds."""

    job_id: str
    usage: list[tuple[int, int]] = field(default_factory=list)
    turns_s: list[float] = field(default_factory=list)

    @property
    def cacheable(self) -> int:
        """Tokens in whole blocks that each turn has in common with the one before."""
        return sum(before // BLOCK_TOKENS * BLOCK_TOKENS for before, _ in self.usage[:-1])

    @property
    def cached(self) -> int:
        return sum(cached for _, cached in self.usage[1:])

    @property
    def num_hits(self) -> int:
        """Turns that found all whole blocks of the one before in the cache."""
        return sum(
            cached >= before // BLOCK_TOKENS * BLOCK_TOKENS
            for (before, _), (_, cached) in itertools.pairwise(self.usage)
        )


def run_short_tool(turn: int) -> None:
    time.sleep(0.3)


def client_of(router: HTTPProcess, *, max_retries: int = openai.DEFAULT_MAX_RETRIES) -> Any:
    """A client with connections of its own."""
    return openai.OpenAI(
        base_url=router.base_url, api_key=API_KEY, timeout=LIMIT_S, max_retries=max_retries
    )


def play(
    router: HTTPProcess,
    job_id: str,
    run_tool: Callable[[int], object] = run_short_tool,
    *,
    max_retries: int = openai.DEFAULT_MAX_RETRIES,
    affinity: str | None = None,
) -> Played:
    """A job of NUM_TURNS turns with a tool after each but the last."""
    played = Played(job_id)
    messages: list[Any] = [{"role": "user", "content": f"{job_id}: {WORDS}"}]
    with (
        client_of(router, max_retries=max_retries) as client,
        agentkv.session(client, job_id=job_id, affinity=affinity) as job,
    ):
        for turn in range(NUM_TURNS):
            started_s = time.monotonic()
            reply = job.client.chat.completions.create(
                model=MODEL,
                messages=messages,
                max_tokens=8,
                temperature=0,
                extra_body={"ignore_eos": True},
            )
            details = reply.usage.prompt_tokens_details
            cached = 0 if details is None else details.cached_tokens or 0
            played.usage.append((reply.usage.prompt_tokens, cached))
            played.turns_s.append(time.monotonic() - started_s)
            if turn + 1 < NUM_TURNS:
                with job.tool("sleep 0.3"):
                    run_tool(turn)
            messages += [
                {"role": "assistant", "content": reply.choices[0].message.content},
                {"role": "user", "content": WORDS},
            ]
    return played


class SecondTools:
    """The tools after the second turns of several jobs: they run until the test ends them all."""

    def __init__(self) -> None:
        self._all_run = threading.Semaphore(0)
        self._are_over = threading.Event()

    def run(self, turn: int) -> None:
        if turn == 1:
            self._all_run.release()
            assert self._are_over.wait(LIMIT_S)

    def wait_for(self, num_jobs: int) -> None:
        """Wait until they run in `num_jobs` jobs."""
        for _ in range(num_jobs):
            assert self._all_run.acquire(timeout=LIMIT_S)

    def end(self) -> None:
        self._are_over.set()


def ask_for_plugin(router: HTTPProcess) -> None:
    """Our routes are behind the router; a proxy is slow to answer its first request."""
    headers = {"Authorization": f"Bearer {API_KEY}"}
    answer = httpx.get(f"{router.base_url}/agentkv/info", headers=headers, timeout=LIMIT_S)
    assert answer.raise_for_status().json()["policy"]


def play_all(
    router: HTTPProcess, name: str, num_jobs: int, *, affinity: str | None = None
) -> list[Played]:
    """Jobs with short tools, AT_ONCE at a time; all feedback has been sent afterwards."""
    ask_for_plugin(router)

    def play_one(number: int) -> Played:
        return play(router, f"{name}-{number:02d}", affinity=affinity)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = list(pool.map(play_one, range(num_jobs)))
    assert agentkv.flush(LIMIT_S)
    return jobs


def events_of(servers: Sequence[ServerProcess], job_id: str) -> list[Counter[str]]:
    """How often each event of a job stands in the log of each server."""
    found = []
    for server in servers:
        reply = httpx.get(
            f"{server.base_url}/agentkv/timestamps", params={"job": job_id}, timeout=LIMIT_S
        )
        events = reply.raise_for_status().json()["jobs"].get(job_id, [])
        found.append(Counter(event["event"] for event in events))
    return found


@dataclass
class Outcome:
    """Sums over jobs: what reached the server with most of the job's turns."""

    per_server: Counter[int] = field(default_factory=Counter)
    turns: int = 0
    feedback: int = 0
    releases: int = 0
    hit_rate: float = 0.0
    """Cached tokens, of those in whole blocks that each turn has in common with the one before."""


def outcome_of(servers: Sequence[ServerProcess], jobs: Sequence[Played]) -> Outcome:
    outcome = Outcome()
    for job in jobs:
        events = events_of(servers, job.job_id)
        home = max(range(len(servers)), key=lambda each: events[each]["arrival"])
        outcome.per_server[home] += 1
        outcome.turns += events[home]["arrival"]
        signals = sum(count for name, count in events[home].items() if name.startswith("tool_"))
        outcome.feedback += min(signals, (NUM_TURNS - 1) * 2)  # one that was sent again counts once
        outcome.releases += events[home]["closed"]
    outcome.hit_rate = sum(job.cached for job in jobs) / sum(job.cacheable for job in jobs)
    return outcome
