"""Two real servers behind each router of `integrations/routers/`: jobs stay where their KV is.

One pair of servers serves all routers; the last test kills one of the pair. Prints the rows of
studies/fleet/results.md.
"""

import json
import logging
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import openai
import pytest

import agentkv
from agentkv.integrations.vllm.doctor.server import check_server
from agentkv.server.process import ServerProcess
from tests.conftest import TINY_ARGS
from tests.integrations.routers.jobs import (
    AT_ONCE,
    NUM_TURNS,
    SecondTools,
    ask_for_plugin,
    client_of,
    events_of,
    outcome_of,
    play,
    play_all,
)
from tests.integrations.routers.routers import MODEL, ROUTERS, nginx
from tests.server.chat import LIMIT_S, WORDS, chat, metric, wait_for

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(1800)]

NUM_JOBS = 20
NUM_RUNS = 3
FILL = 18
"""Long requests, of which not all fit into a server's memory at once."""
NUM_BLOCKS = "600"
"""Enough for all jobs of the test that kills a server: they end on one."""


def fill(server: ServerProcess, text: str) -> None:
    """One long request of another client, past the router; no other one has its prefix."""
    chat(server, f"{text} {WORDS} " * 8, max_tokens=100)


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
            args = (*TINY_ARGS, "--num-gpu-blocks-override", NUM_BLOCKS)
            server = ServerProcess(
                str(tiny_model_dir), policy="agentkv", args=args, log_path=log_path
            )
            stack.callback(server.stop)
            server.start()
            pair.append(server)
        for server in pair:
            server.wait_until_ready()
        yield pair


@pytest.mark.parametrize("name", ROUTERS)
def test_jobs_and_their_feedback_stay_on_one_server(
    servers: list[ServerProcess], name: str, tmp_path: Path
) -> None:
    """All turns, tool events and the release of a job reach one server, and both have jobs.

    Each turn finds the one before in the cache. Jobs that name another as their affinity go to
    its server.
    """
    with ROUTERS[name](servers, tmp_path) as router:
        runs = [play_all(router, f"{name}-{run}", NUM_JOBS) for run in range(NUM_RUNS)]
        affinity = runs[0][0].job_id if name in ("haproxy", "nginx") else None
        children = play_all(router, f"{name}-child", NUM_JOBS, affinity=affinity)
    if affinity is not None:
        first = outcome_of(servers, runs[0][:1])
        assert outcome_of(servers, children).per_server.keys() == first.per_server.keys()
    for jobs in runs:
        outcome = outcome_of(servers, jobs)
        row = {
            "router": name,
            "jobs": sorted(outcome.per_server.values()),
            "turns on the job's server": f"{outcome.turns} of {NUM_JOBS * NUM_TURNS}",
            "cached of cacheable": round(outcome.hit_rate, 3),
            "tool events there": f"{outcome.feedback} of {NUM_JOBS * (NUM_TURNS - 1) * 2}",
            "releases there": f"{outcome.releases} of {NUM_JOBS}",
        }
        print("\n" + json.dumps(row))
        assert outcome.turns == NUM_JOBS * NUM_TURNS
        assert outcome.hit_rate > 0.98
        assert outcome.feedback == NUM_JOBS * (NUM_TURNS - 1) * 2
        assert outcome.releases == NUM_JOBS
        assert len(outcome.per_server) == 2


def test_the_doctor_tells_a_sticky_router_from_a_round_robin(
    servers: list[ServerProcess], tmp_path: Path
) -> None:
    """`agentkv doctor` says OK behind the recipe, and FAIL behind the same without its hash."""
    with nginx(servers, tmp_path) as router:
        *_, sticky = check_server(router.base_url, None)
    with nginx(servers, tmp_path, without="hash $job consistent;") as router:
        *_, scattered = check_server(router.base_url, None)
    assert (sticky.name, sticky.status) == ("sticky jobs", "OK")
    assert (scattered.name, scattered.status) == ("sticky jobs", "FAIL")
    assert "X-Session-ID" in (scattered.advice or "")


@pytest.mark.parametrize("name", ROUTERS)
def test_a_killed_router_costs_agents_no_more_than_without_agentkv(
    servers: list[ServerProcess], name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A router is killed while the second tool of each job runs, and started again after calls.

    While it is down, a call of a job fails as one without agentkv does, and agents whose SDK tries
    again end well. A warning comes once for all jobs.
    """
    second_tools = SecondTools()
    ids = [f"restarted-{name}-{number}" for number in range(AT_ONCE)]
    with ROUTERS[name](servers, tmp_path) as router, ThreadPoolExecutor(AT_ONCE) as pool:
        ask_for_plugin(router)
        runs = [
            pool.submit(play, router, job_id, second_tools.run, max_retries=30) for job_id in ids
        ]
        second_tools.wait_for(AT_ONCE)
        caplog.clear()
        assert router.pid is not None
        os.killpg(router.pid, signal.SIGKILL)
        router.stop()  # also one that is behind it
        second_tools.end()
        with client_of(router, max_retries=0) as client, agentkv.session(client) as job:
            for each in (client, job.client):
                with pytest.raises(openai.APIConnectionError):
                    each.completions.create(model=MODEL, prompt="a", max_tokens=1)
        router.start()
        router.wait_until_ready()
        jobs = [run.result(LIMIT_S) for run in runs]
        agentkv.flush(LIMIT_S)
    warnings = Counter(
        record.msg
        for record in caplog.records
        if record.name.startswith("agentkv") and record.levelno >= logging.WARNING
    )
    moved = 0
    for job in jobs:
        arrivals = sorted(events["arrival"] for events in events_of(servers, job.job_id))
        moved += arrivals != [0, NUM_TURNS]
    num_hits = sum(job.num_hits for job in jobs)
    row = {
        "restarted router": name,
        "jobs that went on": f"{len(jobs)} of {AT_ONCE}",
        "moved": moved,
        "turns that found the one before": f"{num_hits} of {AT_ONCE * (NUM_TURNS - 1)}",
        "warnings": sorted(warnings.values()),
    }
    print("\n" + json.dumps(row))
    assert max(warnings.values(), default=0) <= 1
    assert num_hits >= AT_ONCE * (NUM_TURNS - 1) - moved
    assert name != "nginx" or moved == 0  # it has no table to lose


@pytest.mark.parametrize("name", ROUTERS)
def test_jobs_of_a_full_server_wait_for_it(
    servers: list[ServerProcess], name: str, tmp_path: Path
) -> None:
    """Another client fills the memory of one server while the second tool of each job runs.

    A router knows nothing of a server's memory: the jobs stay, and the later turns of those on the
    full server wait there.
    """
    second_tools = SecondTools()
    full = servers[0]
    ids = [f"full-{name}-{number}" for number in range(AT_ONCE)]
    with ROUTERS[name](servers, tmp_path) as router, ThreadPoolExecutor(AT_ONCE + FILL) as pool:
        ask_for_plugin(router)
        runs = [pool.submit(play, router, job_id, second_tools.run) for job_id in ids]
        second_tools.wait_for(AT_ONCE)
        fillers = [pool.submit(fill, full, f"{number} {name}") for number in range(FILL)]
        wait_for(lambda: metric(full, "vllm:num_requests_waiting") > 0)
        second_tools.end()
        jobs = [run.result(LIMIT_S) for run in runs]
        for filler in fillers:
            filler.result(LIMIT_S)
        assert agentkv.flush(LIMIT_S)
    third_turns_s: dict[str, list[float]] = {"full": [], "other": []}
    for job in jobs:
        here, there = (events["arrival"] for events in events_of(servers, job.job_id))
        assert sorted((here, there)) == [0, NUM_TURNS]
        third_turns_s["full" if here else "other"].append(round(job.turns_s[2], 2))
    row = {
        "router": name,
        "jobs that went on": f"{len(jobs)} of {AT_ONCE}",
        "seconds of the third turn, by server": third_turns_s,
        "turns that found the one before": sum(job.num_hits for job in jobs),
    }
    print("\n" + json.dumps(row))


def test_a_killed_server_costs_its_jobs_one_prefill(
    servers: list[ServerProcess], tmp_path: Path
) -> None:
    """Behind every router the jobs of a killed server go on, on the other one.

    The server is killed while the second tool of all jobs of all routers runs. No agent sees an
    error, and each job has one turn at most that finds nothing in the cache.
    """
    second_tools = SecondTools()
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
            runs[name] = [pool.submit(play, router, job_id, second_tools.run) for job_id in ids]
        second_tools.wait_for(AT_ONCE * len(installed))
        os.killpg(dead.pid, signal.SIGKILL)
        second_tools.end()
        jobs = {name: [run.result(LIMIT_S) for run in runs[name]] for name in runs}
        agentkv.flush(LIMIT_S)
    for name, played in jobs.items():
        arrivals = sorted(events_of([living], job.job_id)[0]["arrival"] for job in played)
        num_hits = sum(job.num_hits for job in played)
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
