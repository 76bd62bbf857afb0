"""What one client sees and may do of another's jobs, on every route of a real engine."""

from pathlib import Path
from typing import Any

import pytest

from agentkv.evals.event_log import read_record
from agentkv.integrations.vllm.api import engine_side
from agentkv.integrations.vllm.clients import ADMIN_KEY_VARIABLE
from tests.integrations.vllm.api.fake_engine import Server, SteppedCore, client_of
from tests.integrations.vllm.harness import Engine, of
from tests.stepped_engine import prompt_of

ALICE, BOB = "a" * 16, "b" * 16
SHARED = {f"same of {ALICE}", f"same of {BOB}"}
READS = ("/jobs", "/jobs/mine", "/explain?job=mine", "/explain?worst=5", "/timestamps")
CHANGES = ("/jobs/mine/tool", "/jobs/mine/release", "/finish_session?session_id=mine")


@pytest.mark.asyncio
@pytest.mark.parametrize("keys", [(), ("alice", "bob", "root")], ids=["no keys", "keys"])
@pytest.mark.parametrize("path", [*READS, *CHANGES])
async def test_another_client_neither_sees_nor_touches_a_job(
    path: str, keys: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For another key the job is not there. The admin key reads it, as all do where no key is asked
    for; its own key alone changes it."""
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, "root")
    engine = Engine(policy="agentkv")
    engine.turn(prompt_of(100), **of(client_of("alice"), job_id="mine"))
    ask = Server(core=SteppedCore(engine), keys=keys)

    async def reaches(key: str) -> bool:
        is_read = path in READS
        body = None if is_read else {"state": "started"}
        reply = await ask("GET" if is_read else "POST", path, body, key=key)
        return reply.status_code == 200 and "mine" in reply.text

    num_events = len(engine.events["mine"])
    assert await reaches("bob") == (path in READS and not keys)
    assert await reaches("root") == (path in READS)
    assert len(engine.events["mine"]) == num_events
    assert await reaches("alice") == (path in READS or bool(keys))


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """Two clients have a job `same`, one has another job."""
    engine = Engine(policy="agentkv", run_output_dir=str(tmp_path))
    for salt, (client, job_id) in enumerate([(ALICE, "same"), (BOB, "same"), (BOB, "alone")]):
        engine.turn(prompt_of(64, salt=salt), **of(client, job_id=job_id))
    return engine


def names_in_answers(engine: Engine, viewer: str | None) -> list[set[str]]:
    """The jobs' names in /timestamps, /jobs, /explain and the events of /live."""

    def ask(operation: str, *args: Any) -> Any:
        return engine_side.call(engine.scheduler, operation, list(args))

    live = ask("live", viewer, {})
    events = ask("events", viewer, {})["events"]
    rows = (ask("jobs", viewer, live["keys"]), ask("explain", viewer, live["keys"]), live["events"])
    return [{name for name, _ in events}, *({row["job_id"] for row in each} for each in rows)]


def test_equal_ids_are_told_apart_by_who_sees_all(engine: Engine, tmp_path: Path) -> None:
    """An id that one client uses stays as it is; a client reads its own ids alone; the readers of
    the file, in which every line has its client, keep the jobs apart."""
    assert names_in_answers(engine, None) == [{*SHARED, "alone"}] * 4
    assert names_in_answers(engine, ALICE) == [{"same"}] * 4
    assert names_in_answers(engine, BOB) == [{"same", "alone"}] * 4
    engine.scheduler.watchers.log.close()
    assert {job.job_id for job in read_record(str(tmp_path)).jobs} == {*SHARED, "alone"}
