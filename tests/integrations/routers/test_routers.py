"""Two real servers behind each router of `integrations/routers/`: jobs stay where their KV is.

One pair of servers serves all routers; the last test kills one of the pair. Prints the rows of
docs/results/fleet.md.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import agentkv
from agentkv.integrations.vllm.doctor.stickiness import check_stickiness
from agentkv.server.process import HTTPProcess, ServerProcess
from tests.conftest import TINY_ARGS
from tests.integrations.routers.routers import API_KEY, MODEL, ROUTERS, nginx

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(1800)]

NUM_JOBS, NUM_TURNS, AT_ONCE = 20, 4, 5
LIMIT_S = 120.0
WORDS = " ".join(f"word{number}" for number in range(60))
BLOCK_TOKENS = 32


@dataclass
class Played:
    """What a job's client saw: per turn its prompt tokens and those that were cached."""

    job_id: str
    usage: list[tuple[int, int]] = field(default_factory=list)

    @property
    def cacheable(self) -> int:
        """Tokens in whole blocks that each turn has in common with the one before."""
        return sum(before // BLOCK_TOKENS * BLOCK_TOKENS for before, _ in self.usage[:-1])

    @property
    def cached(self) -> int:
        return sum(cached for _, cached in self.usage[1:])


def run_short_tool(turn: int) -> None:
    time.sleep(0.3)


def play(
    router: HTTPProcess, job_id: str, run_tool: Callable[[int], object] = run_short_tool
) -> Played:
    """A job of NUM_TURNS turns with a tool after each but the last, on connections of its own."""
    played = Played(job_id)
    messages: list[Any] = [{"role": "user", "content": f"{job_id}: {WORDS}"}]
    with (
        openai.OpenAI(base_url=router.base_url, api_key=API_KEY, timeout=LIMIT_S) as client,
        agentkv.session(client, job_id=job_id) as job,
    ):
        for turn in range(NUM_TURNS):
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
            if turn + 1 < NUM_TURNS:
                with job.tool("sleep 0.3"):
                    run_tool(turn)
            messages += [
                {"role": "assistant", "content": reply.choices[0].message.content},
                {"role": "user", "content": WORDS},
            ]
    return played


def ask_for_plugin(router: HTTPProcess) -> None:
    """Our routes are behind the router; a proxy is slow to answer its first request."""
    headers = {"Authorization": f"Bearer {API_KEY}"}
    answer = httpx.get(f"{router.base_url}/agentkv/info", headers=headers, timeout=LIMIT_S)
    assert answer.raise_for_status().json()["policy"] == "agentkv"


def play_all(router: HTTPProcess, name: str) -> list[Played]:
    ask_for_plugin(router)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = list(pool.map(lambda n: play(router, f"{name}-{n:02d}"), range(NUM_JOBS)))
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


@pytest.fixture(scope="session")
def servers(
    tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[ServerProcess]]:
    """Two servers under the agentkv policy."""
    folder = tmp_path_factory.mktemp("fleet")
    with ExitStack() as stack:
        pair = []
        for number in range(2):
            log_path = folder / f"server-{number}.log"
            server = ServerProcess(
                str(tiny_model_dir), policy="agentkv", args=TINY_ARGS, log_path=log_path
            )
            pair.append(stack.enter_context(server))
        yield pair


@pytest.mark.parametrize("name", ROUTERS)
def test_jobs_and_their_feedback_stay_on_one_server(
    servers: list[ServerProcess], name: str, tmp_path: Path
) -> None:
    """All turns, tool events and the release of a job reach one server, and both have jobs.

    Each turn finds the one before in the cache.
    """
    with ROUTERS[name](servers, tmp_path) as router:
        jobs = play_all(router, name)
    turns, feedback, releases, per_server = 0, 0, 0, Counter[int]()
    for job in jobs:
        events = events_of(servers, job.job_id)
        home = max(range(len(servers)), key=lambda each: events[each]["arrival"])
        per_server[home] += 1
        turns += events[home]["arrival"]
        signals = sum(count for name, count in events[home].items() if name.startswith("tool_"))
        feedback += min(signals, (NUM_TURNS - 1) * 2)  # one that was sent again counts once
        releases += events[home]["closed"]
    hit_rate = sum(job.cached for job in jobs) / sum(job.cacheable for job in jobs)
    row = {
        "router": name,
        "jobs": sorted(per_server.values()),
        "turns on the job's server": f"{turns} of {NUM_JOBS * NUM_TURNS}",
        "cached of cacheable": round(hit_rate, 3),
        "tool events there": f"{feedback} of {NUM_JOBS * (NUM_TURNS - 1) * 2}",
        "releases there": f"{releases} of {NUM_JOBS}",
    }
    print("\n" + json.dumps(row))
    assert turns == NUM_JOBS * NUM_TURNS
    assert hit_rate > 0.98
    assert feedback == NUM_JOBS * (NUM_TURNS - 1) * 2
    assert releases == NUM_JOBS
    assert len(per_server) == 2


def test_the_doctor_tells_a_sticky_router_from_a_round_robin(
    servers: list[ServerProcess], tmp_path: Path
) -> None:
    """`agentkv doctor` says OK behind the recipe, and FAIL behind the same without its hash."""
    with nginx(servers, tmp_path) as router:
        sticky = list(check_stickiness(router.base_url, None))
    with nginx(servers, tmp_path, without="hash $job consistent;") as router:
        scattered = list(check_stickiness(router.base_url, None))
    assert [(check.name, check.status) for check in sticky] == [
        ("sticky turns", "OK"),
        ("sticky feedback", "OK"),
    ]
    assert (scattered[0].name, scattered[0].status) == ("sticky turns", "FAIL")
    assert "X-Session-ID" in (scattered[0].advice or "")


def test_a_killed_server_costs_its_jobs_one_prefill(
    servers: list[ServerProcess], tmp_path: Path
) -> None:
    """Behind every router the jobs of a killed server go on, on the other one.

    The server is killed while the second tool of all jobs of all routers runs. No agent sees an
    error, and each job has one turn at most that finds nothing in the cache.
    """
    all_wait = threading.Semaphore(0)
    is_killed = threading.Event()

    def run_tool(turn: int) -> None:
        if turn == 1:
            all_wait.release()
            assert is_killed.wait(LIMIT_S)

    dead, living = servers
    assert dead.pid is not None
    installed = {name: start for name, start in ROUTERS.items() if shutil.which(name) is not None}
    runs = {}
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(AT_ONCE * len(installed)))
        for name, start in installed.items():
            (folder := tmp_path / name).mkdir()
            router = stack.enter_context(start(servers, folder))
            ask_for_plugin(router)
            ids = [f"killed-{name}-{number}" for number in range(AT_ONCE)]
            runs[name] = [pool.submit(play, router, job_id, run_tool) for job_id in ids]
        for _ in range(AT_ONCE * len(installed)):
            assert all_wait.acquire(timeout=LIMIT_S)
        os.killpg(dead.pid, signal.SIGKILL)
        is_killed.set()
        jobs = {name: [run.result(LIMIT_S) for run in runs[name]] for name in runs}
        agentkv.flush(LIMIT_S)
    for name, played in jobs.items():
        arrivals = sorted(events_of([living], job.job_id)[0]["arrival"] for job in played)
        num_hits = sum(
            cached >= before // BLOCK_TOKENS * BLOCK_TOKENS
            for job in played
            for (before, _), (_, cached) in itertools.pairwise(job.usage)
        )
        row = {
            "router": name,
            "jobs that went on": f"{len(played)} of {AT_ONCE}",
            "turns on the living server, by job": arrivals,
            "turns that found the one before": f"{num_hits} of {AT_ONCE * (NUM_TURNS - 1)}",
        }
        print("\n" + json.dumps(row))
        moved = arrivals.count(NUM_TURNS - 2)
        assert moved + arrivals.count(NUM_TURNS) == AT_ONCE
        assert num_hits == AT_ONCE * (NUM_TURNS - 1) - moved
    answer = httpx.get(f"{living.base_url}/agentkv/jobs", timeout=LIMIT_S).json()
    assert [job["job_id"] for job in answer["jobs"] if job["job_id"].startswith("killed")] == []
