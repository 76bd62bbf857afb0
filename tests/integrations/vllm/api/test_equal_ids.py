"""Jobs of two clients that use one id, in answers and files that show both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentkv.evals.event_log import read_record
from agentkv.integrations.vllm.api import engine_side
from tests.integrations.vllm.harness import Engine, of
from tests.stepped_engine import prompt_of

ALICE, BOB = "a" * 16, "b" * 16
SHARED = {f"same of {ALICE}", f"same of {BOB}"}


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """Two clients have a job `same`, one has another job."""
    engine = Engine(policy="agentkv", run_output_dir=str(tmp_path))
    for salt, (client, job_id) in enumerate([(ALICE, "same"), (BOB, "same"), (BOB, "alone")]):
        engine.turn(prompt_of(64, salt=salt), **of(client, job_id=job_id))
    return engine


def names_in_answers(engine: Engine, viewer: str | None) -> list[set[str]]:
    """The jobs' names in /jobs, /explain, /timestamps, and the jobs and events of /live."""

    def ask(operation: str, *args: Any) -> Any:
        return engine_side.call(engine.scheduler, operation, list(args))

    keys = ask("job_keys", viewer, 0, 10)
    (view,) = ask("live", [[viewer, {}]])["views"]
    counts = ask("event_counts", viewer)
    events = ask("events", [(key, 0, number) for key, number in counts], -1.0, viewer)
    watched = ask("watched", [(viewer, key) for key in view["keys"]])
    rows = (ask("jobs", viewer, keys), ask("explain", viewer, keys), watched, view["events"])
    return [set(events["jobs"]), *({row["job_id"] for row in each} for each in rows)]


def test_equal_ids_are_told_apart_by_who_sees_all(engine: Engine) -> None:
    """An id that one client uses stays as it is; a client reads its own ids alone."""
    assert names_in_answers(engine, None) == [{*SHARED, "alone"}] * 5
    assert names_in_answers(engine, ALICE) == [{"same"}] * 5
    assert names_in_answers(engine, BOB) == [{"same", "alone"}] * 5


def test_equal_ids_are_told_apart_in_the_file(engine: Engine, tmp_path: Path) -> None:
    """Every line has its client, and the readers of the file keep the jobs apart."""
    engine.scheduler.watchers.log.close()
    record = read_record(str(tmp_path))
    assert {job.job_id for job in record.events} == {*SHARED, "alone"}
