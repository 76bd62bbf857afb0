"""Rules about how long KV is held and whose yields first, worked out from their sources."""

from __future__ import annotations

import pytest

from agentkv.policies import AllocationRequest

from .rules import StillEngine, bound, cost

SHORT = AllocationRequest(None, has_blocks=False, num_running=3, missing_blocks=4)


def yielding(policy_name: str, engine: StillEngine, **settings: float) -> list[str]:
    """Jobs in the order in which their KV is given up."""
    policy = bound(policy_name, engine, **settings)
    return [pin.job_id for pin in policy.pins_that_yield(engine.pins, SHORT)]


def test_a_pin_for_ever_ends_with_the_longest_ttl_that_is_allowed() -> None:
    """`max_ttl_s` bounds it, and the newest job's pin yields first."""
    engine = StillEngine()
    policy = bound("PinForever", engine, max_ttl_s=40.0)
    assert policy.undecided_ttl(cost(100, 1.0)).seconds == 40.0
    assert policy.pins_that_yield([1, 2], SHORT) == [1, 2]


@pytest.mark.parametrize(
    ("num_free_blocks", "ttl_s"),
    [
        (80, 0.02 * 100),  # 200 tokens in use are its own: T(C) / 2 = 0.02 x 200 / 2
        (50, 0.02 * (100 + 300)),
    ],
)
def test_least_waste_grows_with_what_the_others_hold(num_free_blocks: int, ttl_s: float) -> None:
    """200 tokens at 0.02 s each: 0.02 x (200 / 2 + tokens of the others) seconds."""
    engine = StillEngine(num_free_blocks=num_free_blocks)
    policy = bound("InferCept", engine)
    assert policy.undecided_ttl(cost(200, 4.0)).seconds == pytest.approx(ttl_s)


def test_held_contexts_do_not_count_as_running() -> None:
    """Once the tool starts, the turn's own blocks and other pins are no load."""
    engine = StillEngine(num_free_blocks=50)
    engine.add_pin(engine.add_job("own", 200), 20)
    engine.add_pin(engine.add_job("other", 100), 10)
    decision = bound("InferCept", engine).decide("make", cost(200, 4.0))
    assert decision.ttl.seconds == pytest.approx(0.02 * (100 + 200))


def test_the_context_whose_loss_wastes_least_yields_first() -> None:
    """InferCept drops the shortest first, since recomputing grows with the square."""
    engine = StillEngine()
    for job_id, num_blocks in (("middle", 8), ("short", 3), ("long", 20)):
        engine.add_pin(engine.add_job(job_id), num_blocks)
    assert yielding("InferCept", engine) == ["short", "middle", "long"]


def test_the_tool_with_the_longest_expected_rest_yields_first() -> None:
    """Survival decides: a build at 0 s (mean 40), one at 35 s (50 - 35 left), a listing (1)."""
    engine = StillEngine()
    policy = bound("CacheWise", engine)
    for tool, durations_s in (("make", (30.0, 50.0)), ("ls", (1.0, 1.0))):
        for duration_s in durations_s:
            policy.learned.durations.observe(tool, duration_s)
    for job_id, tool, elapsed_s in (("list", "ls", 0.0), ("new", "make", 0.0), ("old", "make", 35)):
        job = engine.add_job(job_id)
        job.tool = tool
        engine.add_pin(job, pinned_s_ago=elapsed_s)
    lefts = [policy.expected_left_s(pin) for pin in engine.pins]
    assert lefts == pytest.approx([1.0, 40.0, 15.0])
    answer = policy.pins_that_yield(engine.pins, SHORT)
    assert [pin.job_id for pin in answer] == ["new", "old", "list"]


def test_a_job_whose_next_turn_waits_yields_last() -> None:
    """CacheWise expects no more of a tool that has ended."""
    engine = StillEngine()
    back, away = engine.add_job("back"), engine.add_job("away")
    policy = bound("CacheWise", engine)
    policy.learned.durations.observe(None, 9.0)
    pins = [engine.add_pin(back), engine.add_pin(away)]
    engine.add_turn(back)
    assert policy.pins_that_yield(pins, SHORT) == [pins[1], pins[0]]


def test_a_priority_counts_until_its_retention_is_over() -> None:
    """With 30 s, an urgent context outlives a plain one while it has idled for less."""
    engine = StillEngine()
    for job_id, priority, idle_s in (("kept", -50, 29.0), ("lapsed", -50, 31.0), ("plain", 0, 5.0)):
        job = engine.add_job(job_id)
        job.priority = priority
        engine.add_pin(job, pinned_s_ago=idle_s)
    assert yielding("SoftRetention", engine, retention_s=30.0) == ["lapsed", "plain", "kept"]


def test_contexts_that_the_queue_wants_yield_last() -> None:
    """Least recent use first; then the wanted ones, that of the queue's head at the very end."""
    engine = StillEngine()
    jobs = [engine.add_job(name) for name in ("head", "second", "older", "newer")]
    for job, idle_s in zip(jobs, (40.0, 50.0, 30.0, 20.0), strict=True):
        engine.add_pin(job, pinned_s_ago=idle_s)
    engine.add_turn(jobs[0])
    engine.add_turn(jobs[1])
    assert yielding("QueueInformed", engine) == ["older", "newer", "second", "head"]
    assert yielding("QueueInformed", engine, depth=1)[0] == "second"


@pytest.mark.parametrize(
    ("prefill_s", "held_tokens"),
    [(0.0, 1000), (0.2, 1000 + 60 - 200), (5.0, 0)],
)
def test_the_tail_that_is_cheap_to_lose_is_not_held(prefill_s: float, held_tokens: float) -> None:
    """1000 tokens at 1 ms each and 60 more expected: L + Q - X stay, within nothing and all."""
    engine = StillEngine()
    policy = bound("TailLRU", engine, prefill_s=prefill_s)
    policy.added_tokens = 60.0
    assert policy.held_tokens(cost(1000, 1.0)) == pytest.approx(held_tokens)


def test_heads_of_contexts_yield_by_least_recent_use() -> None:
    """After the tails have gone T-LRU is LRU, from each context's end."""
    engine = StillEngine()
    for job_id, idle_s in (("newer", 10.0), ("oldest", 90.0)):
        engine.add_pin(engine.add_job(job_id), pinned_s_ago=idle_s)
    assert yielding("TailLRU", engine) == ["oldest", "newer"]
