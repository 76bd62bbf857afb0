"""Clients of one engine, on vLLM's real scheduler: each has jobs of its own."""

from agentkv.integrations.vllm.api import engine_side
from agentkv.protocol import JobKey
from tests.integrations.vllm.harness import Engine, of
from tests.stepped_engine import prompt_of

ALICE, BOB = "a" * 16, "b" * 16


def test_who_may_see_all_jobs_finds_one_by_its_id_alone() -> None:
    """The own job of that id comes first, then the one that was active last."""
    engine = Engine()
    for client, salt, turn in ((ALICE, 1, 3), (BOB, 2, 4)):
        engine.turn(
            prompt_of(100, salt=salt), **of(client, job_id="j", turn=turn, expected_turns=turn)
        )

    def turns_found(client: str, *of_anybody: bool) -> int | None:
        job = engine_side.call(engine.scheduler, "job", [JobKey(client, "j"), *of_anybody])
        return None if job is None else job["expected_turns"]

    assert [turns_found(client, True) for client in (ALICE, BOB, "c" * 16)] == [3, 4, 4]
    assert [turns_found(client) for client in (ALICE, BOB, "c" * 16)] == [3, 4, None]
    assert engine_side.call(engine.scheduler, "job", [JobKey(ALICE, "x"), True]) is None


def test_no_job_has_a_parent_of_another_client() -> None:
    """A parent is looked for among the jobs of the request's own client."""
    engine = Engine()
    engine.turn(prompt_of(100, salt=1), **of(ALICE, job_id="parent"))
    for client in (BOB, ALICE):
        engine.turn(prompt_of(50, salt=2), **of(client, job_id="j", parent_job_id="parent"))
    jobs = engine.retention.jobs
    orders = {client: jobs.get(JobKey(client, "j")).order for client in (ALICE, BOB)}
    assert orders[ALICE] == jobs.get(JobKey(ALICE, "parent")).order != orders[BOB]
    described = engine_side.call(engine.scheduler, "job", [JobKey(ALICE, "j")])
    assert described["parent_job_id"] == "parent"
