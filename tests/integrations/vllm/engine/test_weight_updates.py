"""A trainer's weight updates on vLLM's scheduler, by the methods of vLLM's own EngineCoreProc."""

import queue
from typing import Any

import pytest
from vllm.v1.engine.core import EngineCoreProc
from vllm.v1.request import RequestStatus

from agentkv.integrations.vllm.api import engine_side
from tests.integrations.vllm.harness import Engine
from tests.stepped_engine import prompt_of

HELD: dict[str, Any] = {"policy": "continuum", "ttl": "fixed", "fixed_ttl_s": 100.0}
OFFLOADED = 200 << 20


class NoModel:
    """An executor that has nothing to run, load or put to sleep."""

    is_sleeping = False

    def sleep(self, level: int) -> None:
        self.is_sleeping = True

    def wake_up(self, tags: list[str] | None) -> None:
        self.is_sleeping = False

    def __getattr__(self, name: str) -> Any:
        return lambda *args: None


class Trainer(EngineCoreProc):
    """What a trainer may call of an engine, without its processes: pause, sleep, wake, reset."""

    def __init__(self, engine: Engine) -> None:
        self.scheduler = engine.scheduler
        self.model_executor: Any = NoModel()
        self.mm_receiver_cache = None
        self.batch_queue: Any = engine.in_flight
        self.engines_running = False
        self.output_queue: Any = queue.SimpleQueue()
        self._idle_state_callbacks: list[Any] = []

    def idle(self) -> None:
        """End a pause that waited for this, as the busy loop does when it has no work."""
        if not self.has_work():
            self._notify_idle_state_callbacks()


def settle(engine: Engine, trainer: Trainer) -> None:
    """Step until the engine has no work, and tell the trainer."""
    while trainer.has_work():
        engine.step()
    trainer.idle()


PAUSES = [(mode, clear) for mode in ("abort", "keep", "wait") for clear in (True, False)]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(("mode", "clear"), PAUSES)
def test_what_is_held_follows_the_reset_and_nothing_else(
    mode: Any, clear: bool, is_async: bool
) -> None:
    """A pause that clears the cache ends every pin, one that does not leaves them all; a turn
    that ran goes on after it, unless it was aborted, and is held then."""
    engine = Engine(num_blocks=129, is_async=is_async, **HELD)
    trainer = Trainer(engine)
    engine.turn(prompt_of(200), job_id="held")
    running = engine.add(prompt_of(300, salt=1), job_id="running", max_tokens=20)
    request = engine.scheduler.requests[running]
    engine.steps(4)
    trainer.pause_scheduler(mode, clear)
    settle(engine, trainer)
    held = {} if clear else {"held": 12}
    assert {job: blocks for job, blocks in engine.pinned.items() if job != "running"} == held
    assert ("running" in engine.pinned) == (mode != "keep" and not clear)
    trainer.resume_scheduler()
    settle(engine, trainer)
    aborted = request.status == RequestStatus.FINISHED_ABORTED
    assert aborted == (mode == "abort")
    assert len(request.output_token_ids) == 20 or aborted
    assert ("running" in engine.pinned) == (mode == "keep" or not clear)
    assert engine.lost_blocks() == []


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_ends_every_pin(level: int) -> None:
    """The memory of the KV cache is discarded in both levels, and pins with it."""
    engine = Engine(num_blocks=129, **HELD)
    trainer = Trainer(engine)
    engine.turn(prompt_of(200), job_id="a")
    trainer.sleep(level)
    settle(engine, trainer)
    assert (engine.pinned, engine.num_free, engine.pin_ends) == ({}, 128, {"reset": 1})
    trainer.wake_up(["weights", "kv_cache"])
    engine.turn(prompt_of(240), job_id="a")
    assert engine.pinned == {"a": 15}


@pytest.mark.parametrize("with_tier", [False, True], ids=["no tier", "a tier"])
@pytest.mark.parametrize("with_running", [False, True], ids=["", "running preempted"])
def test_a_reset_frees_what_stock_s_would(with_running: bool, with_tier: bool) -> None:
    """It succeeds unless a turn runs and may not be preempted; no pin is left in either case, and a
    tier is emptied only if that is asked for."""
    engine = Engine(num_blocks=129, offload_bytes=OFFLOADED if with_tier else 0, **HELD)
    scheduler = engine.scheduler
    engine.turn(prompt_of(200), job_id="a")
    engine.add(prompt_of(300, salt=1), job_id="b", max_tokens=20)
    engine.steps(4)
    # The tier too: from one that is kept the preempted request loads at once, which trips an
    # assertion of vLLM's (offloading/scheduler.py:1862).
    assert scheduler.reset_prefix_cache(with_running, with_running) == with_running
    assert engine.pinned == {}
    assert (engine.num_free == 128) == with_running
    engine.run()
    assert scheduler.reset_prefix_cache(False, True)
    assert (engine.pinned, engine.num_free) == ({}, 128)
    engine.turn(prompt_of(240), job_id="a")
    assert engine.num_blocks_loaded == 0
    assert engine.lost_blocks() == []


def test_misses_after_a_reset_are_nobody_s_pressure() -> None:
    """Neither the turn that comes back nor the one that was preempted counts as evicted; neither
    prices, queueing delay nor the balance of admission learn from them."""
    engine = Engine(num_blocks=129, policy="agentkv", prefill_reload_s=[0.0, 1.0, 0.0])
    retention = engine.retention
    context = engine.turn(prompt_of(200), job_id="a")
    engine.add(prompt_of(300, salt=1), job_id="b", max_tokens=20)
    engine.steps(4)
    before = engine_side.stats(engine.scheduler)["learned"]
    assert engine.scheduler.reset_prefix_cache(True)
    engine.turn(context + prompt_of(40, salt=2), job_id="a")
    engine.run()
    after = engine_side.stats(engine.scheduler)["learned"]
    same = ("queueing_delay_s", "loaded_share", "load_token_s", "idle_weight", "tool_durations")
    assert {key: after[key] for key in same[:-1]} == {key: before[key] for key in same[:-1]}
    assert retention.jobs.get("a").num_evicted == 0
    misses = engine.scheduler.watchers.misses.total.recomputed_tokens
    assert {reason for reason, tokens in misses.items() if tokens} == {"reset"}


def test_no_time_passes_in_a_pause() -> None:
    """A pin of 100 s outlives a pause of an hour and has what it had left, and so do leases."""
    engine = Engine(num_blocks=129, job_lease_s=200.0, **HELD)
    trainer = Trainer(engine)
    engine.turn(prompt_of(200), job_id="a")
    engine.wait(60.0)
    trainer.pause_scheduler("keep", clear_cache=False)
    engine.wait(3600.0)
    assert engine.pinned == {"a": 12}
    trainer.resume_scheduler()
    engine.wait(39.0)
    assert engine.pinned == {"a": 12}
    engine.wait(2.0)
    assert engine.pinned == {}
    assert engine.retention.jobs.get("a") is not None


def test_a_gap_that_overlaps_a_pause_teaches_nothing() -> None:
    """The time between two turns counts as the tool's only if the engine could take the second."""
    engine = Engine(num_blocks=129, **HELD)
    trainer, window = Trainer(engine), engine.retention.policy.learned.durations
    context = engine.turn(prompt_of(200), job_id="a")
    engine.wait(1.0)
    context = engine.turn(context + prompt_of(40, salt=2), job_id="a")
    assert window.num_observed == 1
    trainer.pause_scheduler("keep", clear_cache=False)
    engine.wait(5.0)
    trainer.resume_scheduler()
    context = engine.turn(context + prompt_of(40, salt=3), job_id="a")
    assert window.num_observed == 1
    engine.turn(context + prompt_of(40, salt=4), job_id="a", last_tool_s=2.0)
    assert window.num_observed == 2


@pytest.mark.parametrize("tags", [{}, {"turn": 2}], ids=["unnumbered", "numbered"])
def test_an_aborted_turn_that_comes_back_is_the_same_turn(tags: dict[str, Any]) -> None:
    """A trainer sends it again with the tokens that it has so far."""
    engine = Engine(num_blocks=129, **HELD)
    trainer = Trainer(engine)
    context = engine.turn(prompt_of(200), job_id="a", **({"turn": 1} if tags else {}))
    prompt = context + prompt_of(40, salt=2)
    for number in range(3):  # aborted twice
        request_id = engine.add(prompt, job_id="a", max_tokens=20, **tags)
        request = engine.scheduler.requests[request_id]
        engine.steps(6)
        if number < 2:
            trainer.pause_scheduler("abort", clear_cache=True)
            settle(engine, trainer)
            trainer.resume_scheduler()
            prompt = list(request.all_token_ids)
    engine.run()
    job = engine.retention.jobs.get("a")
    assert job.num_turns == 2
    engine.turn(list(request.all_token_ids) + prompt_of(40, salt=3), job_id="a")
    assert job.num_turns == 3


def test_an_id_that_comes_back_after_its_job_is_a_new_job() -> None:
    """The next epoch's trajectory has its own place in line, turns and tools."""
    engine = Engine(num_blocks=129, **HELD)
    retention = engine.retention
    engine.turn(prompt_of(200), job_id="a_0", turn=1)
    engine.turn(prompt_of(200, salt=1), job_id="other")
    engine.tool("a_0", "started")
    old = retention.jobs.get("a_0")
    retention.release("a_0")
    engine.turn(prompt_of(200), job_id="a_0", turn=1)
    new = retention.jobs.get("a_0")
    assert (new.num_turns, new.last_turn, new.running, new.num_diverged) == (1, 1, [], 0)
    assert new.order > retention.jobs.get("other").order > old.order
