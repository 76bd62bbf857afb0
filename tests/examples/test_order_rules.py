"""Rules about who goes first, on cases worked out from their sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentkv.policies import UNPINNED, Turn

from .rules import StillEngine, bound


def order_of(policy: Any, *turns: Turn, pinned: tuple[str, ...] = ()) -> list[str]:
    """Jobs of waiting turns in the order of service."""

    def rank(turn: Turn) -> Any:
        is_pinned = turn.job.job_id in pinned
        return policy.rank(turn, is_preempted=False, is_pinned=is_pinned)

    return [turn.job.job_id for turn in sorted(turns, key=rank)]


def test_stock_serves_turns_as_they_arrive() -> None:
    """The job's own age counts for nothing, a preempted turn goes first."""
    engine = StillEngine()
    old, new = engine.add_job("old"), engine.add_job("new")
    first, second = engine.add_turn(new), engine.add_turn(old)
    policy = bound("Fcfs", engine)
    assert order_of(policy, first, second) == ["new", "old"]
    preempted = policy.rank(second, is_preempted=True, is_pinned=False)
    assert preempted < policy.rank(first, is_preempted=False, is_pinned=False)


def test_infercept_serves_by_the_first_arrival_of_the_job() -> None:
    """A return stands where its job would stand if it had never left."""
    engine = StillEngine()
    old, new = engine.add_job("old"), engine.add_job("new")
    first, second = engine.add_turn(new), engine.add_turn(old)
    assert order_of(bound("InferCept", engine), first, second) == ["old", "new"]


@pytest.mark.parametrize(
    ("wait_weight", "newcomer_waited_s", "first"),
    [(0.05, 59.0, "deep"), (0.05, 61.0, "new"), (0.5, 5.9, "deep"), (0.5, 6.1, "new")],
)
def test_depth_and_wait_are_added_up(
    wait_weight: float, newcomer_waited_s: float, first: str
) -> None:
    """Turn 4 beats turn 1 until the newcomer has waited for 3 turns' worth of seconds."""
    engine = StillEngine()
    deep, new = engine.add_job("deep", idle_s=1.0), engine.add_job("new")
    deep.num_turns = 3
    turns = engine.add_turn(deep), engine.add_turn(new, waited_s=newcomer_waited_s)
    policy = bound("TurnPriority", engine, wait_weight=wait_weight)
    assert order_of(policy, *turns)[0] == first


def test_a_job_that_was_away_counts_from_one_again() -> None:
    """After more than 120 s without a turn, turn 9 stands with turn 1, and the next with turn 2."""
    engine = StillEngine()
    job = engine.add_job("job", idle_s=121.0)
    job.num_turns = 8
    policy = bound("TurnPriority", engine)
    turn = engine.add_turn(job)
    assert policy.number_of(turn) == 1
    engine.end(policy, turn, 1.0)
    assert policy.number_of(engine.add_turn(job)) == 2


def test_least_attained_service_goes_first_and_falls_by_levels() -> None:
    """With bounds of 1, 4, 16 and 64 s: 0.9 s of service is level 0, 5 s level 2."""
    engine = StillEngine()
    policy = bound("Autellix", engine)
    turns = {}
    for job_id, served_s in (("long", 5.0), ("medium", 2.0), ("short", 0.9)):
        job = engine.add_job(job_id)
        engine.end(policy, engine.add_turn(job, running_s=served_s), served_s)
        turns[job_id] = engine.add_turn(job)
    assert [policy.level(turn) for turn in turns.values()] == [2, 1, 0]
    assert order_of(policy, *turns.values()) == ["short", "medium", "long"]
    assert policy.victim_rank(turns["long"]) > policy.victim_rank(turns["short"])


def test_a_running_turn_falls_with_the_time_that_it_runs() -> None:
    """A first turn that has run for 20 s is preempted before a new one."""
    engine = StillEngine()
    policy = bound("Autellix", engine)
    long = engine.add_turn(engine.add_job("long"), running_s=20.0)
    new = engine.add_turn(engine.add_job("new"), running_s=0.1)
    assert policy.tick()
    assert policy.victim_rank(long)[0] == policy.victim_rank(new)[0] + 3


@pytest.mark.parametrize(("waited_s", "level"), [(9.0, 2), (10.0, 0)])
def test_a_turn_that_waits_too_long_is_promoted(waited_s: float, level: int) -> None:
    """A job served for 5 s goes to the first level after twice as long in the queue."""
    engine = StillEngine()
    policy = bound("Autellix", engine)
    job = engine.add_job("job")
    engine.end(policy, engine.add_turn(job, running_s=5.0), 5.0)
    turn = engine.add_turn(job, waited_s=waited_s)
    policy.tick()
    assert policy.level(turn) == level


@pytest.mark.parametrize(("path", "served_s"), [(False, 9.0), (True, 6.0)])
def test_sub_agents_count_as_a_sum_or_as_the_longest_chain(path: bool, served_s: float) -> None:
    """2 s of a parent, then 3 and 4 s of two sub-agents at once: 9 s in all, a chain of 6 s."""
    engine = StillEngine()
    policy = bound("Autellix", engine, path=path)
    parent = engine.add_job("parent")
    engine.end(policy, engine.add_turn(parent, running_s=2.0), 2.0)
    children = [engine.add_job(name) for name in ("a", "b")]
    for child in children:
        child.parent_job_id = "parent"
    turns = [engine.add_turn(child, running_s=1.0) for child in children]
    for turn in turns:
        policy.rank(turn, is_preempted=False, is_pinned=False)
    for turn, turn_s in zip(turns, (3.0, 4.0), strict=True):
        engine.end(policy, turn, turn_s)
    assert policy._served_s["parent"] == pytest.approx(served_s)


def test_the_turn_with_the_fewest_tokens_to_compute_goes_first() -> None:
    """900 tokens of which 800 are held need less than 200 of which none is."""
    engine = StillEngine()
    held, new = engine.add_job("held", 800), engine.add_job("new")
    turns = [engine.add_turn(new, prompt_tokens=200), engine.add_turn(held, prompt_tokens=900)]
    turns[1].common_tokens = 800
    policy = bound("CacheWise", engine)
    assert order_of(policy, *turns, pinned=("held",)) == ["held", "new"]
    assert order_of(policy, *turns) == ["new", "held"]


def test_cachewise_serves_old_and_preempted_turns_by_arrival() -> None:
    """A preempted turn goes first; one that has waited out its patience stands with requests
    without a job, by arrival, and so before all that need fewer tokens."""
    engine = StillEngine()
    policy = bound("CacheWise", engine)
    turns = [
        engine.add_turn(engine.add_job(str(tokens)), prompt_tokens=tokens)
        for tokens in (900, 700, 100)
    ]
    turns[1].has_aged_out = True
    assert order_of(policy, *turns) == ["700", "100", "900"]
    aged = policy.rank(turns[1], is_preempted=False, is_pinned=False)
    assert aged == (UNPINNED, turns[1].order, 0)
    assert policy.rank(turns[0], is_preempted=True, is_pinned=False) < aged


def test_the_client_with_the_smallest_counter_goes_first() -> None:
    """300 prompt tokens and 100 generated ones cost 500; 450 prompt tokens and none cost less."""
    engine = StillEngine()
    policy = bound("VTC", engine)
    jobs = [engine.add_job(name) for name in ("a", "b")]
    prompts = zip(jobs, (300, 450), strict=True)
    first = [engine.add_turn(job, prompt_tokens=num, running_s=1.0) for job, num in prompts]
    then = [engine.add_turn(job) for job in jobs]
    order_of(policy, *first, *then)
    assert policy.tick()
    for turn, context_tokens in zip(first, (400, 450), strict=True):
        engine.end(policy, turn, 1.0, context_tokens)
    assert policy.counters == {"a": 500.0, "b": 450.0}
    assert order_of(policy, *then) == ["b", "a"]


def test_a_client_that_comes_back_is_lifted_to_the_least_of_the_active() -> None:
    """Being away saves up nothing: a counter of 0 begins at the 70 of the least served client."""
    engine = StillEngine()
    policy = bound("VTC", engine)
    order_of(policy, *(engine.add_turn(engine.add_job(name)) for name in ("a", "b")))
    policy.counters.update(a=90.0, b=70.0)
    order_of(policy, engine.add_turn(engine.add_job("new")))
    assert policy.counters["new"] == 70.0


def test_justitia_reads_each_jobs_true_cost_from_a_run(tmp_path: Path) -> None:
    """Turns of 100 + 10 and 150 + 20 tokens cost 1000 + 50 and 3000 + 200 token-steps."""
    rows = [("job", 100, 10), ("job", 150, 20), ("other", 1, 2)]
    keys = ("job_id", "prompt_tokens", "output_tokens")
    path = tmp_path / "turns.jsonl"
    path.write_text("\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in rows))
    engine = StillEngine()
    policy = bound("Justitia", engine, turns_file=str(path))
    assert policy.cost_of(engine.add_job("job")) == 4250.0


def test_an_earlier_job_is_overtaken_only_by_one_that_is_smaller_by_more_than_its_lead() -> None:
    """A lone job's clock runs at 1000 tokens x 50 steps a second: 1 s is a lead of 50,000."""
    engine = StillEngine()
    policy = bound("Justitia", engine)
    policy._costs = {"large": 200_000.0, "small": 149_000.0, "middle": 151_000.0}
    turns = [engine.add_turn(engine.add_job("large"))]
    order_of(policy, *turns)
    engine.now_s += 1.0
    for job_id in ("small", "middle"):
        turns.append(engine.add_turn(engine.add_job(job_id)))
        order_of(policy, turns[-1])
    assert order_of(policy, *turns) == ["small", "large", "middle"]
