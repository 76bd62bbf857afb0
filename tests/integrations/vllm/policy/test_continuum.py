"""Which pins and running turns yield memory, and in which order, under both rule sets."""

import random

import pytest

from tests.integrations.vllm.harness import Engine
from tests.stepped_engine import prompt_of


def pin_jobs(engine: Engine, *names: str, tokens: int = 160) -> None:
    """One finished turn per job, 10 full blocks each, all pinned."""
    for salt, name in enumerate(names):
        engine.turn(prompt_of(tokens, salt=salt), job_id=name)


def test_paper_a_waiting_turn_takes_pins_of_the_latest_jobs_first() -> None:
    """The deadlock rule: the job that arrived latest is unpinned, one by one, until it fits."""
    engine = Engine(num_blocks=41, max_num_batched_tokens=1024)
    pin_jobs(engine, "a", "b", "c")
    assert engine.pinned == {"a": 10, "b": 10, "c": 10}
    engine.add(prompt_of(15 * 16, salt=9), job_id="d")
    engine.step()
    assert engine.pinned == {"a": 10, "b": 10}
    assert engine.pin_ends == {"pressure": 1}


def test_released_a_waiting_turn_waits_while_anything_runs() -> None:
    """Released rules: no pin yields to a waiting turn until nothing runs."""
    engine = Engine(num_blocks=41, max_num_batched_tokens=1024, rules="released")
    pin_jobs(engine, "a", "b")
    engine.add(prompt_of(100, salt=8), max_tokens=12)
    engine.step()
    waiting = engine.add(prompt_of(22 * 16, salt=9), max_tokens=200)
    engine.step()
    assert engine.waiting() == [waiting]
    assert engine.pinned == {"a": 10, "b": 10}
    engine.steps(14)
    assert engine.running() == [waiting]
    assert engine.pin_ends == {"pressure": 1}


def test_released_the_latest_expiry_yields_first() -> None:
    """With nothing running, the pin that would last longest goes."""
    engine = Engine(num_blocks=41, max_num_batched_tokens=1024, rules="released")
    pin_jobs(engine, "a", "b", "c")
    pin = engine.retention.pins.get("a")
    pin.expires_s += 100.0
    engine.retention.pins.reschedule(pin)
    engine.add(prompt_of(15 * 16, salt=9))
    engine.step()
    assert set(engine.pinned) == {"b", "c"}


@pytest.mark.parametrize(("rules", "is_preempted"), [("paper", False), ("released", True)])
def test_a_running_turn_takes_a_pin_before_it_preempts_in_the_paper_only(
    rules: str, is_preempted: bool
) -> None:
    """The paper preempts nothing while pins hold memory; the released code preempts the newest
    job's running turn while idle pins sit in memory."""
    engine = Engine(num_blocks=41, rules=rules, fixed_ttl_s=100.0)
    pin_jobs(engine, "a", "b")
    engine.add(prompt_of(120, salt=8), max_tokens=80, job_id="c")
    engine.add(prompt_of(120, salt=9), max_tokens=80, job_id="d")
    engine.steps(60 if is_preempted else 85)
    assert (engine.totals.get("preemptions_total", 0) > 0) == is_preempted
    assert engine.pin_ends.get("pressure", 0) == (0 if is_preempted else 1)


@pytest.mark.parametrize(("rules", "victim"), [("paper", "old-last"), ("released", "new")])
def test_the_newest_job_is_the_victim(rules: str, victim: str) -> None:
    """Jobs old < mid < new; the last step of `new-last` is spared by the released code only."""
    engine = Engine(num_blocks=41, rules=rules)
    first = {"paper": ["old", "mid", "old-last"], "released": ["old", "new", "new-last"]}[rules]
    ids = {}
    for salt, name in enumerate(first):
        last = {"is_last_step": 1} if name.endswith("last") else {}
        ids[name] = engine.add(
            prompt_of(150, salt=salt), max_tokens=120, request_id=name, job_id=name, **last
        )
    for _ in range(60):
        engine.step()
        if len(engine.running()) < 3:
            break
    assert engine.waiting()[0] == victim


@pytest.mark.parametrize("seed", range(5))
def test_victims_go_by_arrival_of_their_jobs_whoever_was_admitted_when(seed: int) -> None:
    """Jobs that have all had a turn come back one by one in any order, and outgrow the memory."""
    engine = Engine(num_blocks=41)
    names = [f"job {number}" for number in range(6)]
    for salt, name in enumerate(names):
        engine.turn(prompt_of(30, salt=salt), job_id=name)
    returns = random.Random(seed).sample(names, len(names))
    for name in returns:
        prompt = prompt_of(70, salt=names.index(name))
        engine.add(prompt, max_tokens=150, request_id=name, job_id=name)
        engine.step()
    assert engine.running() != names
    victims: list[str] = []
    while len(victims) < 3:
        engine.step()
        victims += [name for name in reversed(engine.waiting()) if name not in victims]
    assert victims == names[:-4:-1]


def test_a_turn_keeps_its_own_pin_while_others_can_yield() -> None:
    """The head's own pin yields last: its blocks are the ones it is about to use."""
    engine = Engine(num_blocks=41, max_num_batched_tokens=1024)
    pin_jobs(engine, "a", "b")
    history = engine.turn(prompt_of(160, salt=2), job_id="c")
    engine.add(history + prompt_of(200, salt=3), job_id="c")
    output = engine.step()
    hit = engine.scheduler.watchers.log.as_dict()["jobs"]["c"][-2]
    assert (hit["event"], hit["hit_length"]) == ("waiting_to_running", 160)
    assert output.total_num_scheduled_tokens > 0
    assert set(engine.pinned) == {"a"}
