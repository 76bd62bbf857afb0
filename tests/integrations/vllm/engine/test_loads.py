"""Turns that a tier loads for, on the real scheduler: vLLM asks for them before all that wait."""

from __future__ import annotations

from collections.abc import Callable

from tests.integrations.vllm.harness import BLOCK_TOKENS, Engine, prompt_of

MakeEngine = Callable[..., Engine]
SHARED = prompt_of(20 * BLOCK_TOKENS, salt=7)


def tiered(make_engine: MakeEngine, *, num_blocks: int = 129, token_s: float = 0.005) -> Engine:
    """An engine whose tier has SHARED, and its pool other things."""
    engine = make_engine(
        policy="agentkv",
        num_blocks=num_blocks,
        max_num_batched_tokens=2048,
        offload_bytes=200_000_000,
        prefill_reload_s=[0.0, token_s, 0.0],
    )
    engine.turn(SHARED + prompt_of(BLOCK_TOKENS, salt=8))
    for salt in range(20, 25):
        engine.turn(prompt_of(110 * BLOCK_TOKENS, salt=salt))
    return engine


def steps_until_done(engine: Engine, *request_ids: str) -> int:
    for num_steps in range(1, 300):
        engine.step()
        if not set(request_ids) & set(engine.scheduler.requests):
            return num_steps
    raise AssertionError(f"running {engine.running()}, waiting {engine.waiting()}")


def test_a_new_job_whose_load_failed_keeps_nobody_waiting(make_engine: MakeEngine) -> None:
    """It was let in when it got its blocks; held back now it would hold back all."""
    engine = tiered(make_engine)
    engine.is_link_open = False
    new = engine.add(SHARED + prompt_of(20 * BLOCK_TOKENS, salt=3), max_tokens=20, job_id="new")
    engine.step()
    engine.add(prompt_of(50 * BLOCK_TOKENS, salt=2), max_tokens=900, job_id="busy")
    engine.step()
    engine.failing.add(new)
    engine.is_link_open = True
    engine.step()
    engine.failing.clear()
    small = [engine.add(prompt_of(20, salt=salt), max_tokens=2) for salt in (40, 41)]
    assert steps_until_done(engine, *small) < 10
    assert steps_until_done(engine, new) < 40


def test_new_jobs_count_at_the_gate_while_a_tier_loads_for_them(make_engine: MakeEngine) -> None:
    """As many are let in as if their prompts were computed."""
    running = {}
    for is_loaded in (False, True):
        engine = tiered(make_engine, num_blocks=400)
        prefixes = [prompt_of(10 * BLOCK_TOKENS, salt=60 + number) for number in range(12)]
        for prefix in prefixes if is_loaded else ():
            engine.turn(prefix + prompt_of(BLOCK_TOKENS, salt=8))
        for salt in range(30, 34):
            engine.turn(prompt_of(110 * BLOCK_TOKENS, salt=salt))
        engine.add(prompt_of(4 * BLOCK_TOKENS, salt=50), max_tokens=800)
        engine.step()
        engine.is_link_open = False
        for number, prefix in enumerate(prefixes):
            prompt = prefix + prompt_of(20 * BLOCK_TOKENS, salt=100 + number)
            engine.add(prompt, max_tokens=64, job_id=f"job-{number}")
            engine.step()
        engine.is_link_open = True
        for _ in range(3):
            engine.step()
        running[is_loaded] = len(engine.running())
    assert 1 < running[True] <= running[False] < 12


def test_a_loaded_turn_takes_what_it_still_needs(make_engine: MakeEngine) -> None:
    """Whoever has blocks is to get on: else all that wait would stand behind it, also the job whose
    idle KV it may not have."""
    engine = make_engine(
        policy="agentkv",
        num_blocks=129,
        max_num_batched_tokens=2048,
        offload_bytes=200_000_000,
        prefill_reload_s=[0.0, 1.0, 0.0],
    )
    early = engine.turn(prompt_of(50 * BLOCK_TOKENS, salt=1), job_id="early")
    late = engine.turn(prompt_of(20 * BLOCK_TOKENS, salt=2), job_id="late")
    engine.end_pin("late")
    engine.turn(prompt_of(77 * BLOCK_TOKENS, salt=20))
    engine.add(prompt_of(24 * BLOCK_TOKENS, salt=3), max_tokens=3000)
    engine.step()
    engine.is_link_open = False
    back = engine.add(late + prompt_of(28 * BLOCK_TOKENS, salt=4), job_id="late")
    engine.step()
    engine.add(prompt_of(14 * BLOCK_TOKENS, salt=30), max_tokens=2500)
    engine.step()
    engine.is_link_open = True
    engine.step()
    next_turn = engine.add([*early, 5, 6, 7], job_id="early")
    assert steps_until_done(engine, back, next_turn) < 60
