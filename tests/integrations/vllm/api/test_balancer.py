"""Which data-parallel engine a job's requests go to, by vLLM's own choice wrapped by ours."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

from vllm import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core_client import DPLBAsyncMPClient

from agentkv.integrations.vllm import plugin

NUM_ENGINES = 4
JOBS = [f"job-{number}" for number in range(40)]


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


def test_all_turns_of_a_job_go_to_one_engine() -> None:
    """Two API servers send each job's turns to the same engine, and every engine has jobs."""
    servers = [Balanced(), Balanced()]
    first = [servers[0].send(job_id=job) for job in JOBS]
    for server in (*servers, *servers):
        assert [server.send(job_id=job) for job in JOBS] == first
    assert set(first) == set(range(NUM_ENGINES))


def test_requests_without_a_job_are_spread_by_load_alone() -> None:
    server, stock = Balanced(), Balanced(policy=None)
    assert [server.send() for _ in range(10)] == [stock.send() for _ in range(10)]


def test_under_a_stock_policy_nothing_is_sticky() -> None:
    """Tags change no choice of an engine where the policy is not ours."""
    tagged, plain = Balanced(policy=None), Balanced(policy=None)
    assert [tagged.send(job_id="job") for _ in range(8)] == [plain.send() for _ in range(8)]


def test_a_rank_that_the_client_names_counts() -> None:
    """X-data-parallel-rank comes before the job's own engine, for that request."""
    server = Balanced()
    own = server.send(job_id="job")
    other = (own + 1) % NUM_ENGINES
    assert server.send(job_id="job", rank=other) == other
    assert server.send(job_id="job") == own


def test_an_engine_that_comes_or_goes_moves_its_own_jobs_alone() -> None:
    """Jobs of the engines that stay are where they were."""
    server = Balanced()
    before = {job: server.send(job_id=job) for job in JOBS}
    del server.client.core_engines[3:], server.client.lb_engines[3:]
    after = {job: server.send(job_id=job) for job in JOBS}
    assert {job for job in JOBS if before[job] != after[job]} == {
        job for job in JOBS if before[job] == 3
    }
