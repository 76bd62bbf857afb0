"""What an answer of the routes costs the engine's main thread when its stores are full."""

import sys
from functools import partial
from types import FrameType
from typing import Any

import pytest

from agentkv.events import ToolStarted
from agentkv.integrations.vllm.api import engine_side
from agentkv.integrations.vllm.api.snapshot import MAX_JOBS
from agentkv.integrations.vllm.clients import ADMIN_KEY_VARIABLE
from agentkv.policies.jobs import Job
from agentkv.protocol import JobKey
from tests.integrations.vllm.api.fake_engine import Server, SteppedCore, client_of
from tests.integrations.vllm.api.test_live import server
from tests.integrations.vllm.harness import Engine
from tests.integrations.vllm.test_cost_bounds import ENGINE_MS, ms_each

pytestmark = pytest.mark.asyncio

NUM_JOBS, NUM_EVENTS, NUM_RECORDS = 10_000, 50_000, 20_000
MAX_INSTRUCTIONS = 40_000
"""Of Python, in one call into the engine: about a millisecond."""


class CountingCore(SteppedCore):
    """A real engine behind the routes; keeps the cost of each operation's longest call: Python's
    instructions, or milliseconds of the thread in the best of five."""

    def __init__(self, engine: Engine, *, is_timed: bool = False) -> None:
        super().__init__(engine)
        self.most: dict[str, float] = {}
        self.is_timed = is_timed
        self._num = 0

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self._num += event == "opcode"
        return self._trace

    async def call_utility_all_async(self, method: str, *args: Any) -> list[Any]:
        call = partial(engine_side.call, self._scheduler, *args)
        if self.is_timed:
            cost = min(ms_each([call] * 5))
            answer = call()
        else:
            self._num, before = 0, sys.gettrace()
            sys.settrace(self._trace)
            try:
                answer = call()
            finally:
                sys.settrace(before)
            cost = self._num
        self.most[args[0]] = max(self.most.get(args[0], 0.0), cost)
        return [answer]


@pytest.fixture(scope="module")
def full() -> Engine:
    """An engine with all the jobs, events and records that it may have, of the key `many`."""
    engine = Engine(policy="agentkv", num_blocks=64)
    client = client_of("many")
    for number in range(NUM_JOBS):
        key = JobKey(client, f"{number}")
        engine.retention.jobs.put(key, Job(key, number))
    for number in range(NUM_RECORDS):
        engine.scheduler.watchers.misses._record_of(JobKey(client, f"{number}"))
    for number in range(NUM_EVENTS):
        key = JobKey(client, f"{number if number < NUM_JOBS else 7}")
        engine.scheduler.watchers.log.on_event(ToolStarted(key, "", "ls", None))
    return engine


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.timed)], ids=["", "timed"])
def core(full: Engine, request: pytest.FixtureRequest) -> CountingCore:
    return CountingCore(full, is_timed=request.param)


@pytest.mark.parametrize("key", ["many", "none", "root"])
async def test_no_answer_holds_the_engine_up(
    core: CountingCore, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """No call of a reading, by any client, takes more than a millisecond of it, with 10,000 jobs
    and 50,000 events of one client; and nothing is left out."""
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, "root")
    ask = Server(core=core, keys=["many", "none", "root"])
    jobs = (await ask("GET", "/jobs", key=key)).json()["jobs"]
    assert len({job["job_id"] for job in jobs}) == (0 if key == "none" else NUM_JOBS)
    for path in ("/explain?worst=10", "/explain?job=7", "/jobs/7", "/stats", "/info"):
        await ask("GET", path, key=key)
    events = (await ask("GET", "/timestamps", key=key)).json()["jobs"]
    assert bool(events) == (key != "none")
    async with server(core=core, keys=["many", "none", "root"]) as (watch, _):
        _, snapshot = await watch(key).next()
    (engine,) = snapshot["engines"]
    assert len({job["job_id"] for job in engine["jobs"]}) == (0 if key == "none" else MAX_JOBS)
    print(core.most)
    assert max(core.most.values()) < (ENGINE_MS if core.is_timed else MAX_INSTRUCTIONS), core.most
