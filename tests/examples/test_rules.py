"""The example rules on cases worked out from their sources: a pool of 1000 tokens in 100 blocks."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentkv.policies import (
    UNPINNED,
    AllocationRequest,
    Turn,
)

from .rules import StillEngine, bound, cost

SHORT = AllocationRequest(None, has_blocks=False, num_running=3, missing_blocks=4)


def order_of(policy: Any, *turns: Turn, pinned: tuple[str, ...] = ()) -> list[str]:
    """Jobs of waiting turns in the order of service."""

    def rank(turn: Turn) -> Any:
        is_pinned = turn.job.job_id in pinned
        return policy.rank(turn, is_preempted=False, is_pinned=is_pinned)

    return [turn.job.job_id for turn in sorted(turns, key=rank)]


def yielding(policy: Any, engine: StillEngine) -> list[str]:
    """Jobs in the order in which their pins are given up."""
    return [pin.job_id for pin in policy.pins_that_yield(engine.pins, SHORT)]


# who goes first


@pytest.mark.parametrize(("rule", "first"), [("Fcfs", "new"), ("InferCept", "old")])
def test_turns_or_jobs_go_as_they_arrived(rule: str, first: str) -> None:
    """Stock looks at the turn's arrival, InferCept at the job's; a preempted turn leads."""
    engine = StillEngine()
    old, new = engine.add_job("old"), engine.add_job("new")
    turns = engine.add_turn(new), engine.add_turn(old)
    policy = bound(rule, engine)
    assert order_of(policy, *turns)[0] == first
    preempted = policy.rank(turns[1], is_preempted=True, is_pinned=False)
    assert preempted < policy.rank(turns[0], is_preempted=False, is_pinned=False)


@pytest.mark.parametrize(
    ("weight", "waited_s", "first"),
    [(0.05, 59.0, "deep"), (0.05, 61.0, "new"), (0.5, 5.9, "deep"), (0.5, 6.1, "new")],
)
def test_depth_and_wait_are_added_up(weight: float, waited_s: float, first: str) -> None:
    """Turn 4 beats turn 1 until the newcomer has waited for 3 turns' worth of seconds."""
    engine = StillEngine()
    deep, new = engine.add_job("deep", idle_s=1.0), engine.add_job("new")
    deep.num_turns = 3
    turns = engine.add_turn(deep), engine.add_turn(new, waited_s=waited_s)
    assert order_of(bound("TurnPriority", engine, wait_weight=weight), *turns)[0] == first


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


def test_cachewise_serves_the_fewest_uncached_tokens_and_old_turns_first() -> None:
    """900 tokens of which 800 are held go before 200 of which none is; a turn that has waited out
    its patience stands with requests without a job, and a preempted one before it."""
    engine = StillEngine()
    turns = [engine.add_turn(engine.add_job(str(num)), prompt_tokens=num) for num in (200, 900)]
    turns[1].common_tokens = 800
    policy = bound("CacheWise", engine)
    assert order_of(policy, *turns, pinned=("900",)) == ["900", "200"]
    assert order_of(policy, *turns) == ["200", "900"]
    turns[1].has_aged_out = True
    aged = policy.rank(turns[1], is_preempted=False, is_pinned=False)
    assert aged == (UNPINNED, turns[1].order, 0)
    assert policy.rank(turns[0], is_preempted=True, is_pinned=False) < aged


def test_vtc_serves_the_smallest_counter() -> None:
    """300 prompt tokens and 100 generated ones cost 500, 450 and none cost less; a job that comes
    back begins at the least counter of the active ones."""
    engine = StillEngine()
    policy = bound("VTC", engine)
    jobs = [engine.add_job(name) for name in ("a", "b")]
    first = [
        engine.add_turn(job, prompt_tokens=num, running_s=1.0)
        for job, num in zip(jobs, (300, 450), strict=True)
    ]
    then = [engine.add_turn(job) for job in jobs]
    order_of(policy, *first, *then)
    assert policy.tick()
    for turn, context_tokens in zip(first, (400, 450), strict=True):
        engine.end(policy, turn, 1.0, context_tokens)
    assert policy.counters == {"a": 500.0, "b": 450.0}
    order_of(policy, engine.add_turn(engine.add_job("new")))
    assert policy.counters["new"] == 450.0


def test_justitia_serves_by_true_cost_and_lead(tmp_path: Path) -> None:
    """Turns of 100 + 10 and 150 + 20 tokens cost 4250 token-steps; a second of a lone job's clock
    is a lead of 50,000."""
    rows = [("job", 100, 10), ("job", 150, 20)]
    keys = ("job_id", "prompt_tokens", "output_tokens")
    path = tmp_path / "turns.jsonl"
    path.write_text("\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in rows))
    engine = StillEngine()
    policy = bound("Justitia", engine, turns_file=str(path))
    assert policy.cost_of(engine.add_job("job")) == 4250.0
    policy._costs = {"large": 200_000.0, "small": 149_000.0, "middle": 151_000.0}
    turns = [engine.add_turn(engine.add_job("large"))]
    order_of(policy, *turns)
    engine.now_s += 1.0
    for job_id in ("small", "middle"):
        turns.append(engine.add_turn(engine.add_job(job_id)))
        order_of(policy, turns[-1])
    assert order_of(policy, *turns) == ["small", "large", "middle"]


# how long KV is held, and whose yields first


@pytest.mark.parametrize(("num_free_blocks", "ttl_s"), [(80, 0.02 * 100), (50, 0.02 * 400)])
def test_least_waste_grows_with_what_the_others_hold(num_free_blocks: int, ttl_s: float) -> None:
    """200 tokens at 0.02 s each: 0.02 x (200 / 2 + tokens of the others) seconds."""
    policy = bound("InferCept", StillEngine(num_free_blocks=num_free_blocks))
    assert policy.undecided_ttl(cost(200, 4.0)).seconds == pytest.approx(ttl_s)


@pytest.mark.parametrize(
    ("rule", "settings", "expected"),
    [
        # recomputing grows with the square of the length
        ("InferCept", {}, ["short", "urgent", "oldest"]),
        # from each context's end by least recent use, once the tails have gone
        ("TailLRU", {}, ["oldest", "urgent", "short"]),
        # the urgent one has idled for less than its retention, or for more
        ("SoftRetention", {"retention_s": 32.0}, ["oldest", "short", "urgent"]),
        ("SoftRetention", {"retention_s": 29.0}, ["oldest", "urgent", "short"]),
    ],
)
def test_whose_pin_yields_first(rule: str, settings: dict[str, float], expected: list[str]) -> None:
    """The three pins in the order in which a rule gives them up."""
    engine = StillEngine()
    for job_id, num_blocks, idle_s in (("short", 3, 5.0), ("urgent", 8, 31.0), ("oldest", 20, 90)):
        job = engine.add_job(job_id)
        job.priority = -50 if job_id == "urgent" else 0
        engine.add_pin(job, num_blocks, pinned_s_ago=idle_s)
    assert yielding(bound(rule, engine, **settings), engine) == expected


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
    assert [policy.expected_left_s(pin) for pin in engine.pins] == pytest.approx([1, 40, 15])
    assert yielding(policy, engine) == ["new", "old", "list"]


def test_contexts_that_the_queue_wants_yield_last() -> None:
    """Least recent use first; then the wanted ones, that of the queue's head at the very end."""
    engine = StillEngine()
    jobs = [engine.add_job(name) for name in ("head", "second", "older", "newer")]
    for job, idle_s in zip(jobs, (40.0, 50.0, 30.0, 20.0), strict=True):
        engine.add_pin(job, pinned_s_ago=idle_s)
    engine.add_turn(jobs[0])
    engine.add_turn(jobs[1])
    policy = bound("QueueInformed", engine)
    assert yielding(policy, engine) == ["older", "newer", "second", "head"]


@pytest.mark.parametrize(("prefill_s", "held"), [(0.0, 1000), (0.2, 860), (5.0, 0)])
def test_the_tail_that_is_cheap_to_lose_is_not_held(prefill_s: float, held: float) -> None:
    """1000 tokens at 1 ms each and 60 more expected: L + Q - X stay, within nothing and all."""
    policy = bound("TailLRU", StillEngine(), prefill_s=prefill_s)
    policy.added_tokens = 60.0
    assert policy.held_tokens(cost(1000, 1.0)) == pytest.approx(held)


# who is held back


@pytest.mark.parametrize(
    ("rules", "paused"),
    # paper: 300 + 0.5 x 800 fit; code: 100 more each, 1500, fit without 200 and 400
    [("paper", set()), ("released", {"small", "middle"})],
)
def test_thunder_agent_pauses_the_smallest_idle_jobs(rules: str, paused: set[str]) -> None:
    """300 of 1100 tokens run, 800 have idled for 1 s: the code pauses two jobs, the paper none."""
    engine = StillEngine()
    engine.add_turn(engine.add_job("running", 300), running_s=1.0)
    for job_id, tokens in (("small", 100), ("middle", 300), ("large", 400)):
        engine.add_job(job_id, tokens, idle_s=1.0)
    policy = bound("ThunderAgent", engine, rules=rules)
    policy.tick()
    assert policy.paused == paused


@pytest.mark.parametrize(
    ("use", "hit_rate", "window"),
    [(0.1, None, 10.0), (0.3, 0.1, 8.0), (0.9, 0.1, 4.0), (0.9, 0.6, 8.0), (0.9, None, 8.0)],
)
def test_concur_moves_its_window(use: float, hit_rate: float | None, window: float) -> None:
    """Plus 2 under 0.2 of use; half over 0.5 if hits are under 0.2; else unchanged."""
    policy = bound("Concur", StillEngine(), first_window=8.0)
    assert policy.next_window(use, hit_rate) == window


def test_mori_sends_the_job_that_idles_most_away() -> None:
    """Of 1200 tokens 600 must leave: the job with 0.8 of idleness, not the one with 0.2; its pin
    yields first."""
    engine = StillEngine()
    policy = bound("Mori", engine)
    for job_id, tool_s, model_s in (("talker", 1.0, 4.0), ("builder", 8.0, 2.0)):
        engine.add_pin(engine.add_job(job_id, 600, idle_s=0.0))
        policy._cycles[job_id].append((tool_s, model_s))
    assert [policy.idleness(job) for job in engine.jobs] == pytest.approx([0.2, 0.8])
    policy.tick()
    assert policy.out == {"builder"}
    assert yielding(policy, engine) == ["builder", "talker"]
    waits = [policy.why_wait(engine.add_turn(job)) is not None for job in engine.jobs]
    assert waits == [False, True]
