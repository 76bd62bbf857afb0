"""A real server of two data-parallel engines: each job stays on one, with nothing from the user."""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import psutil
import pytest

import agentkv
from agentkv.server.process import ServerProcess
from tests.conftest import TINY_ARGS
from tests.server.chat import LIMIT_S, WORDS, agentkv_get, metric, wait_for

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(1800)]

NUM_JOBS, NUM_TURNS = 8, 4
BLOCK_TOKENS = 32


@pytest.fixture(scope="module")
def server(
    tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Two engines of 400 blocks each; vLLM starts two API servers as well."""
    args = (*TINY_ARGS, "--data-parallel-size", "2", "--num-gpu-blocks-override", "400")
    log_path = tmp_path_factory.mktemp("data-parallel") / "server.log"
    with ServerProcess(
        str(tiny_model_dir), policy="agentkv", args=args, log_path=log_path, ready_timeout_s=1200.0
    ) as process:
        yield process


class Agent:
    """A job with connections of its own, so that each turn may come in at either API server."""

    def __init__(self, server: ServerProcess, job_id: str) -> None:
        self.usage: list[tuple[int, int]] = []
        """Per turn its prompt tokens and how many of them were cached."""
        self._server = server
        self._job_id = job_id
        self._client = openai.OpenAI(base_url=server.base_url, api_key="none", timeout=LIMIT_S)
        self._messages = [{"role": "user", "content": f"{job_id}: {WORDS}"}]
        self._session = agentkv.session(self._client, job_id=job_id)
        self._job = self._session.__enter__()

    def play_turn(self) -> None:
        reply = self._job.client.chat.completions.create(
            model="tiny",
            messages=self._messages,
            max_tokens=8,
            temperature=0,
        )
        details = reply.usage.prompt_tokens_details
        self.usage.append((reply.usage.prompt_tokens, details.cached_tokens or 0))
        self._messages += [
            {"role": "assistant", "content": reply.choices[0].message.content},
            {"role": "user", "content": WORDS},
        ]

    @property
    def engines(self) -> list[int]:
        """Those that know the job."""
        jobs = agentkv_get(self._server, "jobs")["jobs"]
        return sorted(job["engine"] for job in jobs if job["job_id"] == self._job_id)

    @property
    def hits(self) -> list[bool]:
        """Which turns after the first found all whole blocks of the one before."""
        pairs = itertools.pairwise(self.usage)
        return [cached > before - BLOCK_TOKENS for (before, _), (_, cached) in pairs]

    def end(self) -> None:
        self._session.__exit__(None, None, None)
        self._client.close()


def test_each_job_stays_on_its_engine(server: ServerProcess) -> None:
    """Every turn after a job's first finds the whole one before in the cache of its engine."""

    def play(job_number: int) -> list[int]:
        agent = Agent(server, f"job-{job_number}")
        for _ in range(NUM_TURNS):
            agent.play_turn()
        engines = agent.engines
        agent.end()
        assert all(agent.hits), agent.usage
        return engines

    with ThreadPoolExecutor(NUM_JOBS) as pool:
        engines = list(pool.map(play, range(NUM_JOBS)))
    assert [len(each) for each in engines] == [1] * NUM_JOBS
    shares = [metric(server, "vllm:request_success_total", engine=str(rank)) for rank in (0, 1)]
    assert sum(shares) == NUM_JOBS * NUM_TURNS
    assert min(shares) >= NUM_TURNS, "both engines serve jobs"
    assert agentkv.flush(LIMIT_S)
    assert agentkv_get(server, "jobs")["jobs"] == []


def test_a_dead_engine_ends_the_whole_server(server: ServerProcess) -> None:
    """vLLM goes down when one of its engines does, so that a router moves its jobs elsewhere.

    An agent gets the error that a client without agentkv gets. The last test: it kills an engine.
    """
    agent = Agent(server, "orphan")
    agent.play_turn()
    children = psutil.Process(server.pid).children(recursive=True)
    engine = next(child for child in children if child.name().startswith("VLLM::EngineCor"))
    engine.kill()
    wait_for(lambda: not server.is_alive)
    with pytest.raises(openai.APIConnectionError):
        agent.play_turn()
    agent.end()
