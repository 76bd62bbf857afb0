"""When a pin begins and ends: 63 usable blocks of 16 tokens, one engine step takes 10 ms."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from agentkv.integrations.vllm.api import engine_side as engine_call
from agentkv.protocol import bounded_id
from tests.integrations.vllm.harness import Engine
from tests.integrations.vllm.step_table import Row, check
from tests.stepped_engine import prompt_of

LAST = {"is_last_step": 1}

TABLES: dict[str, list[Row]] = {
    # 100 + 4 tokens, the last without KV: 6 full blocks stay, the partial one is freed.
    "a finished turn pins its full blocks": [(0, ("turn", "a", 100), {"a": 6}, 57)],
    "a pin expires after its TTL and not before": [
        (0, ("turn", "a", 100), {"a": 6}, 57),
        (1.99, ("wait",), {"a": 6}, 57),
        (0.02, ("wait",), {}, 63),
    ],
    "the next turn takes the pin over and pins the longer context": [
        (0, ("turn", "a", 100), {"a": 6}, 57),
        (1.0, ("turn", "a", 50), {"a": 9}, 54),
        (1.0, ("turn", "a", 50), {"a": 13}, 50),
    ],
    "the last step frees everything": [
        (0, ("turn", "a", 100), {"a": 6}, 57),
        (1.0, ("turn", "a", 50, LAST), {}, 63),
    ],
    "a release frees at once": [
        (0, ("turn", "a", 100), {"a": 6}, 57),
        (0, ("turn", "b", 100), {"a": 6, "b": 6}, 51),
        (0, ("release", "a"), {"b": 6}, 57),
    ],
    "a request without a job is not pinned": [(0, ("untagged", 100), {}, 63)],
    "a prefix cache reset ends all pins": [
        (0, ("turn", "a", 100), {"a": 6}, 57),
        (0, ("turn", "b", 100), {"a": 6, "b": 6}, 51),
        (0, ("reset",), {}, 63),
    ],
    "a job that comes back after its TTL starts anew": [
        (0, ("turn", "a", 100), {"a": 6}, 57),
        (5.0, ("turn", "a", 50), {"a": 9}, 54),
    ],
    "a job that was released may come back": [
        (0, ("turn", "a", 100), {"a": 6}, 57),
        (0, ("release", "a"), {}, 63),
        (0, ("turn", "a", 10), {"a": 7}, 56),
    ],
    "a prompt shorter than a block pins nothing": [(0, ("turn", "a", 8), {}, 63)],
}


@pytest.mark.parametrize("name", TABLES)
def test_pin_rule(name: str, make_engine: Callable[..., Engine]) -> None:
    """Each table of TABLES holds on vLLM's real scheduler, sync and async."""
    check(make_engine(), TABLES[name])


LEARNED = {"cold_start_samples": 3, "prefill_reload_s": (10.0, 0.0, 0.0)}
"""Past its cold start the paper's TTL weighs how long a tool takes against 10 s to rebuild."""
TTL_TABLES: dict[str, tuple[dict[str, Any], list[Row]]] = {
    "fixed TTL: a tool whose mean exceeds it is not pinned for": (
        {"ttl": "fixed"},
        [
            (0, ("turn", "a", 100), {"a": 6}, 57),
            (0, ("tool", "a", "finished", "pytest -q", 9.0), {"a": 6}, 57),
            (0, ("turn", "b", 100), {"a": 6, "b": 6}, 51),
            (0, ("tool", "b", "started", "pytest -x"), {"a": 6}, 57),
        ],
    ),
    "no pin outlives max_ttl_s": (
        {"fixed_ttl_s": 100.0, "max_ttl_s": 1.0},
        [(0, ("turn", "a", 100), {"a": 6}, 57), (1.01, ("wait",), {}, 63)],
    ),
    "paper: once the tool is known the pin has its TTL, 0.1 s for ls and none for make": (
        LEARNED,
        [
            (0, ("turn", "a", 100), {"a": 6}, 57),
            (0, ("tool", "a", "started", "ls -la"), {"a": 6}, 57),
            (0.2, ("wait",), {}, 63),
            (0, ("turn", "b", 100), {"b": 6}, 57),
            (0, ("tool", "b", "started", "make all"), {}, 63),
        ],
    ),
}


@pytest.mark.parametrize("name", TTL_TABLES)
def test_ttl_rule(name: str) -> None:
    """Each table of TTL_TABLES holds, where `ls` took 0.1 s and `make` 50 s so far."""
    settings, rows = TTL_TABLES[name]
    engine = Engine(**settings)
    for _ in range(3 if settings is LEARNED else 0):
        engine.retention.policy.learned.durations.observe("ls", 0.1)
        engine.retention.policy.learned.durations.observe("make", 50.0)
    check(engine, rows)


def test_a_stop_string_ends_a_turn_like_any_other(make_engine: Callable[..., Engine]) -> None:
    """Stop strings reach the scheduler as an abort with `stop` set and some output."""
    engine = make_engine()
    request_id = engine.add(prompt_of(100), max_tokens=50, stop=["```"], job_id="a")
    engine.steps(6)
    engine.abort(request_id)
    assert engine.pinned == {"a": 6}


def test_an_abort_before_any_output_is_not_a_turn(make_engine: Callable[..., Engine]) -> None:
    """A disconnect during prefill pins nothing, with or without stop strings."""
    engine = make_engine(max_num_batched_tokens=32)
    request_id = engine.add(prompt_of(100), max_tokens=50, stop=["```"], job_id="a")
    engine.step()
    engine.abort(request_id)
    engine.run()
    assert engine.pinned == {}
    assert engine.num_free == 63


@pytest.mark.parametrize(("num_steps", "blocks"), [(5, 8), (0, 6)], ids=["midway", "waiting"])
@pytest.mark.parametrize("policy", ["continuum", "agentkv"])
def test_a_turn_that_the_client_left_is_held_like_one_that_ended(
    policy: str, num_steps: int, blocks: int
) -> None:
    """For its TTL, and the time of a person teaches nothing; before it runs it changes nothing."""
    engine = Engine(policy=policy, max_ttl_s=30.0, prefill_reload_s=[0.0, 0.02, 0.0])
    history = engine.turn(prompt_of(100), job_id="a", reply="Done.")
    ends = [pin.expires_s for pin in engine.retention.pins]
    left = engine.add(history + prompt_of(24, salt=1), max_tokens=50, job_id="a")
    observed = engine.totals.get("tool_observations_total", {})
    engine.steps(num_steps)
    text = list(engine.scheduler.requests[left].all_token_ids)
    engine.abort(left)
    assert engine.pinned == {"a": blocks}
    assert num_steps or ends == [pin.expires_s for pin in engine.retention.pins]
    engine.wait(1.0)
    engine.turn(text + prompt_of(20, salt=2), job_id="a")
    assert engine.totals.get("tool_observations_total", {}) == observed or not num_steps
    assert engine.retention.jobs.get("a").num_evicted == 0
    engine.wait(60.0)
    assert engine.pinned == {}
    assert not engine.lost_blocks()


@pytest.mark.parametrize("policy", ["continuum", "agentkv"])
def test_what_is_held_of_a_window_that_slides_is_what_can_hit(policy: str) -> None:
    """After three turns that diverge at one place, and again all once a turn goes on from all."""
    engine = Engine(policy=policy, num_blocks=129, prefill_reload_s=[0.0, 0.1, 0.0])
    kept = prompt_of(16 * 6, salt=1)
    context, held = [], []
    for turn in range(6):
        newest = [prompt_of(64, salt=2 + turn + each) for each in range(3)]
        context = engine.turn([*kept, *newest[0], *newest[1], *newest[2]], job_id="a")
        held.append(engine.pinned["a"])
    assert held == [18, 18, 18, 6, 6, 6]
    engine.turn(context + prompt_of(16, salt=20), job_id="a")
    assert engine.pinned["a"] == 19
    assert not engine.lost_blocks()


def test_a_pin_waits_for_a_turn_that_is_already_queued() -> None:
    """The TTL runs out while the next turn waits for a slot: the pin is kept for it."""
    engine = Engine(max_num_seqs=1)
    history = engine.turn(prompt_of(100), job_id="a")
    engine.add(prompt_of(64, salt=5), max_tokens=300)
    engine.step()
    request_id = engine.add(history + prompt_of(20, salt=6), job_id="a")
    engine.clock.now_s += 10
    engine.step()
    assert engine.pinned == {"a": 6}
    assert engine.waiting() == [request_id]
    engine.run()
    assert engine.pin_ends == {"returned": 1}


def test_pins_of_siblings_never_hold_a_block_twice() -> None:
    """n > 1, sub-agents and retries: one pin a job, the longer context, all else freed."""
    engine = Engine()
    for index, max_tokens in enumerate((4, 40, 8)):
        engine.add(prompt_of(100), max_tokens=max_tokens, request_id=f"{index}_x", job_id="a")
    engine.add(prompt_of(60, salt=9), max_tokens=4, job_id="a")
    engine.run()
    assert engine.pinned == {"a": (100 + 40 - 1) // 16}
    assert engine.num_free == 63 - engine.pinned["a"]
    assert engine.retention.jobs.get("a").num_turns == 1
    engine.wait(3.0)
    assert engine.num_free == 63


def test_a_repeated_turn_number_is_a_retry() -> None:
    """The same (job_id, turn) twice counts one turn, leaves one pin and tells of no tool."""
    engine = Engine()
    engine.turn(prompt_of(100), job_id="a", turn=1)
    engine.turn(prompt_of(100), job_id="a", turn=1)
    assert "tool_observations_total" not in engine.totals
    engine.turn(prompt_of(130), job_id="a", turn=2)
    assert engine.retention.jobs.get("a").num_turns == 2
    assert list(engine.pinned) == ["a"]


def test_an_idle_job_loses_its_lease() -> None:
    """Jobs end without saying so: an engine without requests wakes when a lease is over."""
    engine = Engine(job_lease_s=600.0)
    engine.turn(prompt_of(100), job_id="a")
    engine.wait(400.0)
    retention = engine.retention
    assert retention.next_due_s == retention.jobs.get("a").last_activity_s + 600.0
    engine.wait(201.0)
    assert not len(retention.jobs)
    assert retention.next_due_s == inf


@pytest.mark.parametrize(
    ("tags", "pinned"),
    [
        ({"job_id": ""}, {}),
        ({"job_id": "a", "turn": 0}, {"a": 6}),
        ({"job_id": "a" * 300}, {bounded_id("a" * 300): 6}),
    ],
)
def test_bad_tags_are_counted_and_ignored(tags: dict[str, Any], pinned: dict[str, int]) -> None:
    """What slips past the API server (no middleware there) costs the request that tag only."""
    engine = Engine()
    engine.turn(prompt_of(100), **tags)
    assert engine.pinned == pinned
    assert engine.totals.get("bad_tags_total", 0) == (len(tags["job_id"]) <= 256)


def test_a_changed_history_is_told_from_an_evicted_one() -> None:
    """A prompt that no longer repeats the context is `diverged`; a lost cache is `evicted`."""
    engine = Engine()
    history = engine.turn(prompt_of(200), job_id="a")
    engine.turn(history[:100] + prompt_of(100, salt=7), job_id="a")
    job = engine.retention.jobs.get("a")
    assert (job.num_diverged, job.num_evicted) == (1, 0)
    history = engine.turn(prompt_of(200, salt=8), job_id="b")
    engine.end_pin("b")
    engine.turn(prompt_of(950, salt=9))
    engine.turn(history + prompt_of(10), job_id="b")
    job = engine.retention.jobs.get("b")
    assert (job.num_diverged, job.num_evicted) == (0, 1)


def test_a_short_prompt_of_its_own_leaves_the_jobs_context_pinned() -> None:
    """Agents ask for titles and summaries in between, under the same job."""
    engine = Engine(num_blocks=129, prefill_reload_s=[0.0, 1.0, 0.0])
    history = engine.turn(prompt_of(16 * 60, salt=1), job_id="a")
    pinned = engine.pinned
    engine.turn(prompt_of(40, salt=9), job_id="a")
    given_up = engine.add(prompt_of(40, salt=10), job_id="a")
    engine.step()
    engine.abort(given_up)
    assert engine.pinned == pinned == {"a": 60}
    engine.turn([*history, 5, 6, 7], job_id="a")
    job = engine_call.call(engine.scheduler, "job", ["a"])
    assert (job["turns_evicted"], job["turns_diverged"], job["turns"]) == (0, 0, 2)
    assert engine.pin_ends == {"returned": 1}


def test_a_context_that_starts_anew_takes_the_pins_place() -> None:
    """Once it is the longer one, or the old one's pin is over."""
    engine = Engine(num_blocks=129, prefill_reload_s=[0.0, 1.0, 0.0])
    engine.turn(prompt_of(16 * 20, salt=1), job_id="a")
    engine.turn(prompt_of(16 * 30, salt=2), job_id="a")
    assert engine.pinned == {"a": 30}
    engine.end_pin("a")
    engine.turn(prompt_of(16 * 10, salt=3), job_id="a")
    assert engine.pinned == {"a": 10}
