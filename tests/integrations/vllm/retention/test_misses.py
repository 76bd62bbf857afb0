"""What turns were expected to find in the cache, what they found, and why not all of it."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.v1.core.sched.scheduler import Scheduler

from agentkv.integrations.vllm.retention import misses
from agentkv.testing.stepped_engine import BLOCK_TOKENS, prompt_of
from tests.integrations.vllm.harness import Engine

POOL = 64
HELD = {"policy": "continuum", "ttl": "fixed", "fixed_ttl_s": 100.0, "rules": "released"}
"""Everything is held, and nothing is given up before the TTL is over unless nothing else runs."""


def history(engine: Engine) -> Any:
    return engine.scheduler.retention.history


def last_turn(engine: Engine, job_id: str) -> dict[str, Any]:
    turn: dict[str, Any] = history(engine).turns_of(job_id, None)[-1]
    return turn


def fill(engine: Engine, num_tokens: int, *, salt: int = 99, **tags: Any) -> None:
    """Run a request of its own that allocates this many tokens' blocks and frees them."""
    engine.turn(prompt_of(num_tokens, salt=salt), max_tokens=1, **tags)


@pytest.mark.parametrize("num_passed", [0, 100, 500, 780, 800, 816, 850, 900, 976, 1000])
def test_what_stock_would_have_found_is_what_stock_finds(num_passed: int) -> None:
    """The hit that is said to be stock's own is the one that vLLM's own scheduler has, after the
    same requests, and the rest of ours counts as kept."""
    prompt = prompt_of(200)
    hits = []
    for scheduler_class in (None, Scheduler):
        engine = Engine(num_blocks=POOL, scheduler_class=scheduler_class, **HELD)
        tags = {"job_id": "a"} if scheduler_class is None else {}
        context = engine.turn(prompt, **tags)
        for part in range(0, num_passed, 400):
            fill(engine, min(400, num_passed - part), salt=99 + part)
        request_id = engine.add(context + prompt_of(40, salt=3), **tags)
        request = engine.scheduler.requests[request_id]
        output = engine.step()
        hits.append(request.num_computed_tokens - output.num_scheduled_tokens[request_id])
        if scheduler_class is None:
            engine.run()
            total = history(engine).tally.total
    ours, stocks = hits
    assert ours == 192
    assert (total.stock_hit_tokens, total.kept_tokens) == (stocks, ours - stocks)
    assert (total.kept_engine_s > 0) == (ours > stocks)


def test_a_hit_is_kept_once() -> None:
    """Of two turns that go on from one, only the first saves anything: while that runs, stock has
    the blocks as well."""
    engine = Engine(num_blocks=POOL, **HELD)
    context = engine.turn(prompt_of(200), job_id="a")
    for part in range(4):
        fill(engine, 400, salt=part + 50)
    for number in range(2):
        engine.add(context + prompt_of(40, salt=number), job_id="a", turn=number + 2)
    engine.run()
    kept = [turn["kept_tokens"] for turn in history(engine).turns_of("a", None)]
    assert kept == [0, 192, 0]


def test_shared_blocks_are_not_said_to_be_kept() -> None:
    """Blocks that another job holds when a turn ends count as what stock would find."""
    engine = Engine(num_blocks=POOL, **HELD)
    engine.turn(prompt_of(160), job_id="b")
    context = engine.turn(prompt_of(160) + prompt_of(40, salt=4), job_id="a")
    for part in range(4):
        fill(engine, 400, salt=part + 50)
    engine.turn(context + prompt_of(40, salt=3), job_id="a")
    turn = last_turn(engine, "a")
    assert (turn["hit_tokens"], turn["kept_tokens"]) == (192, 192 - 160)


def lose(engine: Engine, context: list[int], how: str) -> list[int]:
    """Let a job lose its cached context in one of several ways; returns its next prompt."""
    if how == "pressure":
        fill(engine, 950, job_id="taker")
    elif how == "ttl":
        engine.wait(200.0)
    elif how == "released":
        engine.scheduler.retention.release("a")
    elif how == "reset":
        assert engine.scheduler.reset_prefix_cache()
    elif how == "diverged":
        context = [*context[:50], 7, *context[51:]]
    for part in range(3):
        fill(engine, 700, salt=part + 70)
    return context + prompt_of(40, salt=3)


@pytest.mark.parametrize(
    ("how", "lost_tokens", "facts"),
    [
        ("pressure", 192, {"taken_by": "taker", "ttl_s": 100.0, "let_go": "pressure"}),
        ("ttl", 192, {"ttl_s": 100.0, "let_go": "expired", "tool_s": pytest.approx(200, abs=1)}),
        ("released", 192, {"let_go": "released"}),
        ("reset", 192, {}),
        ("diverged", 192 - 48, {"diverged_at": 48, "of_tokens": 192}),
    ],
)
def test_why_tokens_are_computed_again(how: str, lost_tokens: int, facts: dict[str, Any]) -> None:
    """A turn that finds less than its job had left is told the reason, and the tokens count."""
    engine = Engine(num_blocks=POOL, **HELD)
    context = engine.turn(prompt_of(200), job_id="a")
    engine.turn(lose(engine, context, how), job_id="a")
    turn = last_turn(engine, "a")
    assert turn["expected_tokens"] == 192
    miss = turn["miss"]
    assert (miss["reason"], miss["tokens"]) == (how, lost_tokens)
    assert {name: miss[name] for name in facts} == facts
    recomputed = history(engine).tally.total.recomputed_tokens
    assert {reason: n for reason, n in recomputed.items() if n} == {how: lost_tokens}


def test_no_memory_for_it_at_all() -> None:
    """Without a pin the reason is a TTL of 0, since stock's order alone had kept the blocks."""
    engine = Engine(num_blocks=POOL, policy="continuum", ttl="fixed", fixed_ttl_s=0.0)
    context = engine.turn(prompt_of(200), job_id="a")
    engine.turn(lose(engine, context, "nothing"), job_id="a")
    miss = last_turn(engine, "a")["miss"]
    assert (miss["reason"], miss["ttl_s"], miss["tokens"]) == ("ttl", 0.0, 192)


def test_another_clients_job_is_not_named() -> None:
    """Who took the memory is said by id only to its own client, and to who sees all jobs."""
    engine = Engine(num_blocks=POOL, **HELD)
    context = engine.turn(prompt_of(200), job_id="a", agentkv_client="1" * 16)
    fill(engine, 950, job_id="taker", agentkv_client="2" * 16)
    engine.turn(context + prompt_of(40, salt=3), job_id="a", agentkv_client="1" * 16)
    job = next(job for job in engine.scheduler.retention.jobs if job.own_id == "a")
    seen = {
        viewer: history(engine).turns_of(job.job_id, viewer)[-1]["miss"]["taken_by"]
        for viewer in ("1" * 16, "2" * 16, None)
    }
    assert seen == {"1" * 16: "another client's job", "2" * 16: "taker", None: "taker"}


def test_a_preempted_turn_computes_again_under_pressure() -> None:
    """The tokens that a preempted turn computes a second time count as lost to pressure."""
    engine = Engine(num_blocks=16, **HELD)
    engine.add(prompt_of(100), job_id="a", max_tokens=60)
    engine.add(prompt_of(100, salt=1), job_id="b", max_tokens=60)
    engine.run()
    totals = engine.scheduler.retention.counters.totals()
    assert totals["preemptions_total"] > 0
    assert totals["recomputed_tokens_total"]["pressure"] > 0


def test_everything_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns are kept up to a number a job and in all, and block hashes up to their bytes; a job
    that is forgotten goes on as a new one."""
    monkeypatch.setattr(misses, "MAX_TURNS", 12)
    monkeypatch.setattr(misses, "MAX_TURNS_OF_JOB", 5)
    monkeypatch.setattr(misses, "MAX_HASH_BYTES", 30 * misses.HASH_BYTES)
    engine = Engine(num_blocks=POOL, **HELD)
    for job in range(10):
        context = prompt_of(100, salt=job)
        for _ in range(job):
            context = engine.turn(context, job_id=f"j{job}")
    record = history(engine)
    num_turns = [len(record.turns_of(f"j{job}", None)) for job in range(10)]
    assert num_turns == [0, 0, 0, 0, 0, 0, 0, 0, 5, 5]
    assert sum(len(left.block_hashes) for left in record._hashed.values()) <= 30
    assert not record._arrivals


def test_without_hashes_a_divergence_is_found_by_checkpoints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job whose block hashes were dropped has its divergence at the checkpoint before it."""
    monkeypatch.setattr(misses, "MAX_HASH_BYTES", 0)
    engine = Engine(num_blocks=POOL, **HELD)
    context = engine.turn(prompt_of(400), job_id="a")
    engine.turn([*context[:200], 7, *context[201:], 5], job_id="a")
    at = last_turn(engine, "a")["miss"]["diverged_at"]
    assert at <= 200
    assert at % BLOCK_TOKENS == 0
