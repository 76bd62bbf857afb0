"""Engines in the trainer's own process: jobs, tools, releases and weight updates without HTTP."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import agentkv

pytestmark = [
    *(pytest.mark.server, pytest.mark.long),
    # vLLM leaves its sockets of an engine in this process to the garbage collector
    pytest.mark.filterwarnings("ignore:Unclosed context:ResourceWarning"),
]

PROMPT = list(range(100, 420))
ENGINE: dict[str, Any] = {
    "max_model_len": 2048,
    "block_size": 32,
    "kv_cache_memory_bytes": 64 << 20,
    "scheduling_policy": "continuum",
    "additional_config": {"agentkv": {"ttl": "fixed", "fixed_ttl_s": 60.0}},
    "seed": 0,
}


@asynccontextmanager
async def running_engine(model: Path, **options: Any) -> AsyncIterator[Any]:
    """A trainer's `AsyncLLM` of the tiny model."""
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    args = AsyncEngineArgs(model=str(model), **{**ENGINE, **options})
    engine = AsyncLLM.from_engine_args(args)
    try:
        yield engine
    finally:
        engine.shutdown()


class Loop:
    """An agent loop as trainers write it: tokens in, tokens out."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.num_requests = 0

    async def turn(self, prompt: list[int], max_tokens: int = 8, **options: Any) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.num_requests += 1
        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
            **options,
        )
        outputs = self.engine.generate(
            {"prompt_token_ids": prompt}, params, f"request-{self.num_requests}"
        )
        async for output in outputs:
            last = output
        return last

    async def ask(self, operation: str, *args: Any) -> Any:
        core = self.engine.engine_core
        return await core.call_utility_async("agentkv_call", operation, list(args))

    async def until(self, job_id: str, is_so: Any) -> Any:
        """The engine's view of a job, once it is so: feedback arrives a little later."""
        for _ in range(500):
            job = await self.ask("job", job_id)
            if is_so(job):
                return job
            await asyncio.sleep(0.01)
        raise AssertionError(job)


async def _trajectory(loop: Loop) -> None:
    """Turns are numbered and pinned, tools reported, the end released, the summary complete."""
    with agentkv.session(job_id="uid_0") as job:
        first = await loop.turn(PROMPT)
        known = await loop.ask("job", "uid_0")
        assert (known["turns"], known["pinned_blocks"] > 0) == (1, True)
        with job.tool("pytest -q"):
            assert (await loop.until("uid_0", lambda job: job["last_tool"]))[
                "last_tool"
            ] == "pytest"
        context = [*PROMPT, *first.outputs[0].token_ids, *range(500, 520)]
        second = await loop.turn(context)
        assert second.num_cached_tokens == 320
        assert (await loop.ask("job", "uid_0"))["turns"] == 2
    assert await loop.until("uid_0", lambda job: job is None) is None
    summary = job.summary()
    assert (summary.turns, summary.failed_calls, summary.tool_calls) == (2, 0, 1)
    assert (summary.prompt_tokens, summary.hit_tokens) == (320 + len(context), 320)
    assert summary.output_tokens == 16
    assert (await loop.ask("stats"))["pin_ends_total"]["released"] == 1


async def _without_a_session(loop: Loop) -> None:
    """A prompt outside of any session, and one that was tagged by hand, are left as they are."""
    await loop.turn(PROMPT)
    assert await loop.ask("job_keys", None, 0, 9) == []
    with agentkv.session() as job:
        await loop.turn(PROMPT, extra_args={"job_id": "by hand"})
    assert job.summary().turns == 0
    assert (await loop.ask("job", "by hand"))["turns"] == 1
    await loop.ask("release", "by hand")


@pytest.mark.parametrize("play", [_trajectory, _without_a_session])
def test_an_agent_loop_around_an_asynchronous_engine(play: Any, each_on_one_engine: Any) -> None:
    """See the docstring of each case."""
    each_on_one_engine(play)


@pytest.fixture(scope="module")
def each_on_one_engine(tiny_model_dir: Path) -> Iterator[Any]:
    """Runs a coroutine on the event loop of one engine."""
    with asyncio.Runner() as runner:
        entered = running_engine(tiny_model_dir)
        engine = runner.run(entered.__aenter__())
        yield lambda play: runner.run(play(Loop(engine)))
        runner.run(entered.__aexit__(None, None, None))


EXAMPLE = Path(__file__).parents[2] / "examples/rollouts/train.py"
SHORT = ("--steps", "2", "--groups", "1", "--samples", "2", "--turns", "2", "--blocks", "66")


def test_stock_and_agentkv_train_on_the_same_trajectories(demo_model_dir: Path) -> None:
    """Under one seed both give the same rewards and log-probabilities, also after an update of the
    weights."""
    command = [sys.executable, str(EXAMPLE), *SHORT, "--model", str(demo_model_dir)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr[-2000:]
    *steps, last = map(json.loads, ran.stdout.splitlines())
    assert [(step["policy"], step["step"]) for step in steps] == [
        *(("fcfs", 0), ("fcfs", 1)),
        *(("agentkv", 0), ("agentkv", 1)),
    ]
    (compared,) = last["compared"]
    assert compared["same_rewards"]
    assert compared["largest_logprob_difference"] < 1e-3
