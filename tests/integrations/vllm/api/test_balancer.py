"""Which data-parallel engine a job's requests go to, by vLLM's own choice wrapped by ours."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core_client import DPLBAsyncMPClient

from agentkv.integrations.vllm import plugin
from agentkv.integrations.vllm.api.balancer import EngineTable
from agentkv.integrations.vllm.watch.load_reports import (
    EngineLoad,
    EngineReport,
    better_rank,
    engine_reports,
)

NUM_ENGINES = 4
PREFILL = (0.0, 0.001, 0.0)  # 1 ms a token


@pytest.fixture(autouse=True)
def no_reports() -> Iterator[None]:
    engine_reports.clear()
    yield
    engine_reports.clear()


class Balanced:
    """vLLM's client of several engines, with its choice of an engine and without the engines."""

    def __init__(self, policy: str | None = "agentkv") -> None:
        plugin.register()
        self.client = client = DPLBAsyncMPClient.__new__(DPLBAsyncMPClient)
        settings = {} if policy is None else {"agentkv": {"policy": policy}}
        client.vllm_config = SimpleNamespace(additional_config=settings)
        client.client_count, client.eng_start_index = 1, 0
        client.core_engines = [bytes([rank]) for rank in range(NUM_ENGINES)]
        client.lb_engines = [[0, 0, 0.0] for _ in range(NUM_ENGINES)]
        client.reqs_in_flight, client.engine_inflight = {}, Counter()
        client.streaming_reqs = set()  # from 0.33 on
        self._num_sent = 0

    def send(self, *, rank: int | None = None, num_tokens: int = 100, **tags: Any) -> int:
        """Send a request with these tags; returns the rank of its engine."""
        self._num_sent += 1
        request = EngineCoreRequest(
            request_id=str(self._num_sent),
            prompt_token_ids=[1] * num_tokens,
            mm_features=None,
            sampling_params=SamplingParams(extra_args=tags),
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=rank,
        )
        return self.client.core_engines.index(self.client.get_core_engine_for_request(request))


def report(rank: int, wait_s: float, *, age_s: float = 0.0) -> None:
    engine_reports[rank] = EngineReport(wait_s, PREFILL, time.monotonic() - age_s)


def test_all_turns_of_a_job_go_to_one_engine() -> None:
    """First turns are spread as by stock, and each later one follows its own job's first."""
    server = Balanced()
    first = [server.send(job_id=f"job-{job}") for job in range(8)]
    assert sorted(first) == sorted([*range(NUM_ENGINES)] * 2)
    for _ in range(3):
        assert [server.send(job_id=f"job-{job}") for job in range(8)] == first


def test_requests_without_a_job_are_spread_by_load_alone() -> None:
    server, stock = Balanced(), Balanced(policy=None)
    assert [server.send() for _ in range(10)] == [stock.send() for _ in range(10)]


def test_under_a_stock_policy_nothing_is_sticky() -> None:
    """Tags change no choice of an engine where the policy is not ours."""
    tagged, plain = Balanced(policy=None), Balanced(policy=None)
    assert [tagged.send(job_id="job") for _ in range(8)] == [plain.send() for _ in range(8)]


def test_a_rank_that_the_client_names_counts_and_the_job_stays_there() -> None:
    server = Balanced()
    assert server.send(job_id="job") == 0
    assert server.send(job_id="job", rank=3) == 3
    assert server.send(job_id="job") == 3


def test_clients_with_equal_job_ids_have_different_jobs() -> None:
    """The engine of one client's job says nothing of another client's job with the same id."""
    server = Balanced()
    first = server.send(job_id="job", agentkv_client="a" * 16)
    other = server.send(job_id="job", agentkv_client="b" * 16)
    assert first != other
    assert server.send(job_id="job", agentkv_client="a" * 16) == first


@pytest.mark.parametrize(("num_waiting", "is_with_parent"), [(0, True), (1, False)])
def test_a_sub_agent_starts_on_its_parents_engine_unless_others_wait_there(
    num_waiting: int, is_with_parent: bool
) -> None:
    server = Balanced()
    server.send(job_id="other")
    parent = server.send(job_id="parent")
    server.client.lb_engines[parent][0] = num_waiting
    child = server.send(job_id="child", parent_job_id="parent")
    assert (child == parent) == is_with_parent
    assert server.send(job_id="child") == child


@pytest.mark.parametrize(
    ("waits_s", "num_waiting", "num_running", "age_s", "moves_to"),
    [
        ({0: 0.15, 1: 0.0}, (5, 0), 0, 0.0, 1),  # 100 tokens take 0.1 s elsewhere
        ({0: 0.05, 1: 0.0}, (5, 0), 0, 0.0, None),
        ({0: 0.15, 1: 0.1}, (5, 0), 0, 0.0, None),
        ({0: 0.25, 1: 0.1}, (5, 0), 0, 0.0, 1),
        ({0: 0.35, 1: 0.0}, (5, 0), 3, 0.0, None),  # four requests would wait for 0.1 s
        ({0: 0.45, 1: 0.0}, (5, 0), 3, 0.0, 1),
        ({0: 0.15, 1: 0.0}, (0, 0), 0, 0.0, None),  # those waits are over
        ({0: 9.0, 1: 0.0}, (5, 1), 0, 0.0, None),  # memory is short on both
        ({0: 0.25, 2: 0.0}, (5, 0), 1, 0.0, None),  # nothing is known of the emptiest one
        ({0: 0.15, 2: 0.0}, (5, 0), 0, 0.0, 1),  # but that it has no requests
        ({1: 0.0}, (5, 0), 0, 0.0, None),
        ({0: 0.15, 1: 0.0}, (5, 0), 0, 60.0, None),
    ],
)
def test_a_job_moves_to_an_engine_with_room_when_it_waits_longer_than_a_move_costs(
    waits_s: dict[int, float],
    num_waiting: tuple[int, int],
    num_running: int,
    age_s: float,
    moves_to: int | None,
) -> None:
    for rank, wait_s in waits_s.items():
        report(rank, wait_s, age_s=age_s)
    loads = {rank: EngineLoad(number, num_running) for rank, number in enumerate(num_waiting)}
    loads[2] = EngineLoad(0, 9)
    assert better_rank(0, 100, loads, engine_reports, time.monotonic()) == moves_to


def test_a_job_that_has_moved_stays_on_its_new_engine() -> None:
    server = Balanced()
    assert server.send(job_id="job") == 0
    report(0, 1.0)
    report(1, 0.0)
    server.client.lb_engines[0][:2] = [5, 5]
    for rank in (2, 3):
        server.client.lb_engines[rank][:2] = [0, 9]
    assert server.send(job_id="job") == 1
    report(0, 0.0)
    assert server.send(job_id="job") == 1


def test_jobs_that_leave_a_full_engine_at_once_are_spread() -> None:
    """Requests count on their engine before its next report shows them."""
    server = Balanced()
    for job in range(6):
        server.send(job_id=f"job-{job}", rank=0)
    server.client.lb_engines[0][:2] = [5, 5]
    report(0, 1.0)
    for rank in (1, 2, 3):
        server.client.lb_engines[rank][:2] = [0, 1]
        report(rank, 0.0)
    assert sorted(server.send(job_id=f"job-{job}") for job in range(6)) == [1, 1, 2, 2, 3, 3]


def test_an_engine_that_was_scaled_away_is_forgotten() -> None:
    server = Balanced()
    server.send(job_id="job", rank=3)
    del server.client.core_engines[3:], server.client.lb_engines[3:]
    assert server.send(job_id="job") in range(3)


def test_jobs_stay_when_engines_are_added_and_new_jobs_go_to_those() -> None:
    """Elastic scale-up moves no job; a new job goes to the engine that runs nothing."""
    server = Balanced()
    before = [server.send(job_id=f"job-{job}") for job in range(8)]
    server.client.core_engines.append(bytes([NUM_ENGINES]))
    for load in server.client.lb_engines:
        load[:2] = [0, 2]
    server.client.lb_engines.append([0, 0, 0.0])
    assert [server.send(job_id=f"job-{job}") for job in range(8)] == before
    assert server.send(job_id="new") == NUM_ENGINES


def test_a_full_table_forgets_the_job_not_seen_for_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hundred jobs in eight slots the eight latest are known, each with its own engine."""
    monkeypatch.setattr(EngineTable, "NUM_SLOTS", 8)
    seconds = iter(range(1000))
    table = EngineTable.of_this_process(lambda: next(seconds))
    for job in range(100):
        table.put(f"job-{job}", job % 7)
    found = {job: table.get(f"job-{job}") for job in range(100)}
    assert {job: rank for job, rank in found.items() if rank is not None} == {
        job: job % 7 for job in range(92, 100)
    }


def _put_and_get(connection: Any) -> None:
    table = EngineTable.of_server()
    connection.send(table.get("told by the parent"))
    table.put("told by the child", 2)
    connection.send("done")


def test_the_api_servers_of_one_server_share_the_table() -> None:
    """A process started by the same one, as vLLM starts its API servers, reads and writes it."""
    table = EngineTable.of_server()
    table.put("told by the parent", 1)
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_put_and_get, args=(theirs,))
    process.start()
    assert ours.recv() == 1
    assert ours.recv() == "done"
    process.join()
    assert table.get("told by the child") == 2
