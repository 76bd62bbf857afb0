"""Clients of one engine, on vLLM's real scheduler: each has jobs of its own."""

import random

from agentkv.integrations.vllm.api import engine_side
from agentkv.integrations.vllm.retention.pins import PinTable
from agentkv.policies import Pin
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


def test_blocks_that_jobs_share_count_once() -> None:
    """Of all, and of each client, however pins begin, shrink and end."""
    chance, blocks = random.Random(0), [object() for _ in range(40)]
    table: PinTable[object] = PinTable()
    for number in range(500):
        pins = list(table)
        if len(pins) < 2 or (len(pins) < 12 and chance.random() < 0.5):
            key, kept = JobKey(chance.choice("ab"), f"{number}"), blocks[: chance.randint(2, 40)]
            table.add(Pin(key, number, kept, 0, 0.0, 9.0, len(kept)))
        elif len((pin := chance.choice(pins)).blocks) > 1 and chance.random() < 0.5:
            table.trim(pin, chance.randint(1, len(pin.blocks) - 1))
        else:
            table.remove(pin)
        for client in ("a", "b", "nobody"):
            own = [pin for pin in table if pin.job_id.client == client]
            assert table.num_blocks_of(client) == len({id(b) for pin in own for b in pin.blocks})
            assert (client in table.clients) is bool(own)
        assert table.num_blocks == len({id(block) for pin in table for block in pin.blocks})
