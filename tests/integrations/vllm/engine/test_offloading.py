"""Beside vLLM's own KV offloading, its scheduler's side: what a pin lets go of is loaded back."""

from __future__ import annotations

import pytest

from agentkv.integrations.vllm.retention.costs import MIN_EVENTS
from tests.integrations.vllm.harness import Engine
from tests.stepped_engine import BLOCK_TOKENS, prompt_of

DRAM_BYTES = 64 * 1024**2
CONTEXT_BLOCKS = 10
HOLD_FOR_LONG = {"prefill_reload_s": [0.0, 1.0, 0.0], "ttl": "fixed", "fixed_ttl_s": 60.0}


def fill_the_pool(engine: Engine) -> None:
    """Turns without a job take every block that is not pinned."""
    for salt in range(20, 24):
        engine.add(prompt_of(9 * BLOCK_TOKENS, salt=salt))
        engine.run()


def run_turn(engine: Engine, prompt: list[int]) -> tuple[int, int]:
    """Tokens that the job's next turn found, in the pool or loaded, and blocks that were loaded."""
    before = engine.num_blocks_loaded
    engine.turn(prompt, job_id="job")
    events = engine.scheduler.watchers.log.as_dict()["jobs"]["job"]
    found = [event["hit_length"] for event in events if event["event"] == "waiting_to_running"]
    return found[-1], engine.num_blocks_loaded - before


@pytest.mark.parametrize(("wait_s", "is_held"), [(0.0, True), (4000.0, False)])
def test_a_context_is_found_if_held_and_else_loaded(wait_s: float, is_held: bool) -> None:
    """Of a pin the blocks are still there; of one let go, which frees the pool for other uses, the
    tier has a copy, and nothing is computed."""
    engine = Engine(num_blocks=40, offload_bytes=DRAM_BYTES, **HOLD_FOR_LONG)
    history = engine.turn(prompt_of(CONTEXT_BLOCKS * BLOCK_TOKENS), job_id="job")
    engine.wait(wait_s)
    fill_the_pool(engine)
    assert engine.pinned == ({"job": CONTEXT_BLOCKS} if is_held else {})
    found, num_loaded = run_turn(engine, [*history, 7])
    assert (found, num_loaded == 0) == (CONTEXT_BLOCKS * BLOCK_TOKENS, is_held)


def test_a_tool_predicted_to_be_long_lets_the_context_go_to_the_tier() -> None:
    """The price of recomputing decides that, not an expiry."""
    engine = Engine(
        num_blocks=40, policy="agentkv", offload_bytes=DRAM_BYTES, prefill_reload_s=[0.0, 1e-4, 0.0]
    )
    history = engine.turn(prompt_of(CONTEXT_BLOCKS * BLOCK_TOKENS), job_id="job")
    engine.tool("job", "started", "pip install torch")
    engine.wait(0.0)
    assert engine.pinned == {}
    fill_the_pool(engine)
    assert run_turn(engine, [*history, 7])[1] > 0


def come_back_often(engine: Engine) -> None:
    """A job's context leaves the GPU before each of its turns."""
    history = prompt_of(CONTEXT_BLOCKS * BLOCK_TOKENS)
    for _ in range(MIN_EVENTS + 1):
        history = [*engine.turn(history, job_id="job"), 7]
        engine.wait(1000.0)
        fill_the_pool(engine)


def test_kv_is_held_for_as_long_as_loading_takes() -> None:
    """By what was measured: a load takes a step here, computing as long as the settings say."""
    engine = Engine(
        num_blocks=40,
        policy="agentkv",
        offload_bytes=DRAM_BYTES,
        prefill_reload_s=[0.0, 1.0, 0.0],
    )
    retention = engine.retention
    num_tokens = CONTEXT_BLOCKS * BLOCK_TOKENS
    assert retention.policy.rules.price_s(retention.costs.cost(num_tokens)) > 100
    come_back_often(engine)
    assert engine.num_blocks_loaded > 0
    assert retention.costs.offload.load_token_s > 0
    assert retention.costs.offload.loaded_share == 1.0
    assert not retention.costs.offload.is_loading
    load_s = retention.costs.offload.load_token_s * num_tokens
    assert retention.policy.rules.price_s(retention.costs.cost(num_tokens)) == load_s


def test_a_load_within_the_step_ends_with_the_step() -> None:
    """Connectors that load while the request runs report no end of it."""
    engine = Engine(num_blocks=40, policy="agentkv")
    history = engine.turn(prompt_of(4 * BLOCK_TOKENS), job_id="job")
    request_id = engine.add([*history, 7], job_id="job")
    tier = engine.retention.costs.offload
    engine.scheduler.has_started(engine.scheduler.requests[request_id], 2 * BLOCK_TOKENS)
    assert tier.is_loading
    engine.run()
    assert not tier.is_loading
    assert tier.load_token_s > 0


def test_only_loads_of_a_jobs_own_past_count() -> None:
    """What others left in the tier says nothing of what becomes of a job's context."""
    engine = Engine(num_blocks=40, policy="agentkv", offload_bytes=DRAM_BYTES, **HOLD_FOR_LONG)
    prompt = prompt_of(CONTEXT_BLOCKS * BLOCK_TOKENS)
    engine.turn(prompt)
    fill_the_pool(engine)
    engine.turn(prompt)
    fill_the_pool(engine)
    engine.turn([*prompt, 7], job_id="first turn")
    assert engine.num_blocks_loaded > 0
    assert engine.retention.costs.offload.load_token_s == 0.0


def test_without_a_connector_nothing_comes_back() -> None:
    """All that leaves the GPU is lost."""
    engine = Engine(num_blocks=40, policy="agentkv", prefill_reload_s=[0.0, 1.0, 0.0])
    come_back_often(engine)
    assert engine.retention.costs.offload.loaded_share == 0.0


SHARED = prompt_of(20 * BLOCK_TOKENS, salt=7)


def tiered(*, num_blocks: int = 129, token_s: float = 0.005) -> Engine:
    """An engine whose tier has SHARED, and its pool other things."""
    engine = Engine(
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


def test_a_new_job_whose_load_failed_keeps_nobody_waiting() -> None:
    """It was let in when it got its blocks; held back now it would hold back all."""
    engine = tiered()
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


def test_new_jobs_count_at_the_gate_while_a_tier_loads_for_them() -> None:
    """As many are let in as if their prompts were computed."""
    running = {}
    for is_loaded in (False, True):
        engine = tiered(num_blocks=400)
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
        engine.steps(3)
        running[is_loaded] = len(engine.running())
    assert 1 < running[True] <= running[False] < 12


def test_a_loaded_turn_takes_what_it_still_needs() -> None:
    """A request that has blocks must proceed: all that wait stand behind it, also the job whose
    idle KV it may not have."""
    engine = Engine(
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
