"""Clients of one engine, on vLLM's real scheduler: each has jobs of its own."""

from __future__ import annotations

from agentkv.integrations.vllm.api import engine_side
from agentkv.protocol import JobKey
from tests.integrations.vllm.harness import Engine, of
from tests.stepped_engine import prompt_of

ALICE, BOB = "a" * 16, "b" * 16


def test_equal_ids_of_two_clients_are_two_jobs() -> None:
    """Each client reads, signals and releases its own job of an id, and pins are kept apart."""
    engine = Engine()
    for client, salt in ((ALICE, 1), (BOB, 2)):
        engine.turn(prompt_of(100, salt=salt), **of(client, job_id="j"))
    alice, bob = JobKey(ALICE, "j"), JobKey(BOB, "j")
    assert engine.pinned == {alice: 6, bob: 6}
    released = engine_side.call(engine.scheduler, "release", [alice])
    assert (released["job_id"], released["freed_blocks"]) == ("j", 6)
    assert engine.pinned == {bob: 6}
    assert engine_side.call(engine.scheduler, "job", [alice]) is None
    assert engine_side.call(engine.scheduler, "job", [bob])["job_id"] == "j"
    event = {"state": "started", "command": "ls"}
    assert engine_side.call(engine.scheduler, "tool", [bob, event])["job_id"] == "j"
    assert engine_side.call(engine.scheduler, "job", [JobKey("", "j")]) is None


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


def test_no_job_is_inferred_across_clients() -> None:
    """A prompt that continues a turn of another client opens nothing of that client's."""
    engine = Engine(num_blocks=128)
    call = "So:\n```bash\nls\n```"
    first = engine.turn(prompt_of(100, salt=3), max_tokens=30, reply=call, **of(ALICE))
    engine.turn([*first, *prompt_of(40, salt=4)], **of(BOB))
    assert len(engine.retention.jobs) == 0
    engine.turn([*first, *prompt_of(40, salt=5)], **of(ALICE))
    (job,) = engine.retention.jobs
    assert job.job_id.client == ALICE
