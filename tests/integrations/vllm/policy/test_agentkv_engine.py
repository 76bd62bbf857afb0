"""The `agentkv` policy on vLLM's real scheduler: stock without pressure, its rules under it."""

from typing import Any

import pytest

from agentkv.policies.forecast import PRIOR_TURNS
from tests.integrations.vllm.harness import STOCK, Engine
from tests.stepped_engine import prompt_of


def engine_of(**options: Any) -> Engine:
    """With a price of recomputing that makes it worth holding for seconds."""
    return Engine(
        policy="agentkv",
        max_num_batched_tokens=1024,
        prefill_reload_s=[0.0, 0.05, 0.0],
        **{"num_blocks": 41, **options},
    )


def pin_jobs(engine: Engine, *names: str, tokens: int = 160) -> None:
    """One finished turn per job, 10 full blocks each, all held."""
    for salt, name in enumerate(names):
        engine.turn(prompt_of(tokens, salt=salt), job_id=name)


def press(engine: Engine) -> None:
    """Memory counts as contended from now on."""
    engine.retention.policy.pressure.rise(engine.clock.now_s, 1e9)
    engine.scheduler.rank_changed(None)


def events(engine: Engine, name: str) -> list[dict[str, Any]]:
    record = engine.scheduler.watchers.log.as_dict()["jobs"]
    return [event for job in record.values() for event in job if event["event"] == name]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_with_ample_memory_every_step_is_exactly_stocks(is_async: bool) -> None:
    """Tagged jobs, three turns each, more than run at once: the same tokens in the same steps."""
    given: dict[str, Any] = {"num_blocks": 400, "max_num_seqs": 3, "is_async": is_async}
    ours = engine_of(**given)
    stock = Engine(**given, max_num_batched_tokens=1024, scheduler_class=STOCK[is_async])
    seen = []
    for engine, is_tagged in ((ours, True), (stock, False)):
        histories = {name: prompt_of(50, salt=salt) for salt, name in enumerate("abcde")}
        steps: list[dict[str, int]] = []
        for turn in range(3):
            requests = {}
            for name, history in histories.items():
                request_id = engine.add(
                    history,
                    max_tokens=5 + ord(name) % 3,
                    request_id=f"{name}{turn}",
                    **({"job_id": name} if is_tagged else {}),
                )
                requests[name] = engine.scheduler.requests[request_id]
            while engine.scheduler.has_unfinished_requests():
                output = engine.step()
                steps.append(dict(output.num_scheduled_tokens))
            for name, request in requests.items():
                histories[name] = list(request.all_token_ids) + prompt_of(20, salt=turn)
        seen.append(steps)
    assert seen[0] == seen[1]
    assert not ours.scheduler.retention.policy.pressure.is_on


def test_a_waiting_turn_takes_the_tail_of_the_newest_jobs_pin() -> None:
    """No more blocks than it needs; the job's first blocks stay, and its next turn finds them."""
    engine = engine_of()
    pin_jobs(engine, "a", "b", "c")
    assert engine.pinned == {"a": 10, "b": 10, "c": 10}
    engine.add(prompt_of(15 * 16, salt=9))
    engine.step()
    assert engine.pinned == {"a": 10, "b": 10, "c": 5}
    assert [(event["blocks"], event["left"]) for event in events(engine, "trimmed")] == [(5, 5)]
    engine.run()
    left_blocks = engine.pinned["c"]
    engine.turn(prompt_of(200, salt=2), job_id="c")
    (event,) = [event for event in events(engine, "waiting_to_running") if event["hit_length"]]
    assert 0 < event["hit_length"] == left_blocks * 16


@pytest.mark.parametrize("is_pressed", [False, True])
def test_a_running_turn_takes_idle_blocks_before_anything_is_preempted(is_pressed: bool) -> None:
    """Even those of earlier jobs, the newest's first, from the end; though another turn runs."""
    engine = engine_of(without=["admission"])
    pin_jobs(engine, "a", "b", "c")
    if is_pressed:
        press(engine)
    for name in ("d", "e"):
        engine.add(prompt_of(30, salt=ord(name)), max_tokens=150, job_id=name)
    engine.run()
    assert engine.totals.get("preemptions_total", 0) == 0
    assert engine.pinned["a"] == 10
    assert 0 < engine.pinned["b"] < 10
    assert "c" not in engine.pinned


def test_what_running_turns_need_in_one_step_is_taken_at_once() -> None:
    """Four turns fill a block in the same step, and two do not: one cut takes four blocks."""
    engine = engine_of(num_blocks=33, without=["admission"])
    pin_jobs(engine, "a", "b")
    for index in range(6):
        num_tokens = 30 if index < 4 else 25
        engine.add(prompt_of(num_tokens, salt=9 + index), max_tokens=150, job_id=f"turn {index}")
    engine.step()
    assert (sum(engine.pinned.values()), engine.num_free) == (20, 0)
    while sum(engine.pinned.values()) == 20:
        engine.step()
    assert [event["blocks"] for event in events(engine, "trimmed")] == [4]
    assert (sum(engine.pinned.values()), engine.num_free) == (16, 0)


def test_a_pin_cut_block_by_block_leaves_one_event() -> None:
    """A turn that decodes takes a block every 16 tokens; the pin's end has the sum."""
    engine = engine_of()
    pin_jobs(engine, "a", "b", "c")
    engine.turn(prompt_of(150, salt=9), max_tokens=100)
    left_blocks = engine.pinned["c"]
    assert [event["blocks"] for event in events(engine, "trimmed")] == [1]
    engine.retention.release("c")
    (end,) = events(engine, "unpinned")
    assert (end["blocks"], end["trimmed"]) == (left_blocks, 10 - left_blocks)
    assert end["trimmed"] > 1


def test_a_new_job_is_held_back_while_those_there_need_the_room() -> None:
    """It says why, counts, and starts when the others are over."""
    engine = engine_of(num_blocks=61)
    press(engine)
    first = engine.add(prompt_of(300, salt=1), max_tokens=40, job_id="a")
    engine.step()
    held = engine.add(prompt_of(300, salt=2), job_id="b")
    engine.step()
    assert engine.running() == [first]
    assert engine.waiting() == [held]
    (event,) = events(engine, "held")
    assert "blocks expected at the peak, the pool has 60" in event["reason"]
    assert engine.totals["holds_total"] == 1
    engine.run()
    assert engine.retention.jobs.get("b").num_turns == 1


@pytest.mark.parametrize(
    ("without", "loaded_tokens", "is_let_in"),
    [([], 0, True), ([], 960, False), (["balance"], 0, False)],
    ids=["holding costs more", "loading costs more", "not weighed"],
)
def test_a_job_is_let_in_once_holding_has_cost_more_than_coming_back(
    without: list[str], loaded_tokens: int, is_let_in: bool
) -> None:
    """Half of the pool is idle; as much as all of it is being loaded, or nothing."""
    engine = engine_of(num_blocks=61, without=without)
    engine.turn(prompt_of(480, salt=1), job_id="idle", expected_turns=2)
    history = engine.turn(prompt_of(40, salt=2), job_id="busy")
    pin = engine.retention.pins.get("idle")
    pin.expires_s = pin.doubtful_s = 1e9  # as while a long tool runs
    busy = engine.add([*history, 7], max_tokens=400, job_id="busy")
    engine.step()
    new = engine.add(prompt_of(400, salt=3), max_tokens=400, job_id="new", expected_turns=1)
    engine.step()
    assert engine.running() == [busy]
    assert engine.waiting() == [new]
    for _ in range(40):
        if loaded_tokens:
            engine.scheduler.has_started(engine.scheduler.requests[busy], loaded_tokens)
        engine.step(step_s=1.0)
    assert "idle" in engine.pinned
    assert (new in engine.running()) is is_let_in


@pytest.mark.parametrize(("without", "is_let_in"), [([], True), (["patience"], False)])
@pytest.mark.parametrize(
    ("tags", "has_gate"),
    [({"job_id": "new"}, True), ({"job_id": "new"}, False), ({}, True)],
    ids=["held by the gate", "held by the order", "without a job"],
)
def test_jobs_that_never_end_keep_nobody_out_for_longer_than_four_lifetimes(
    tags: dict[str, str], has_gate: bool, without: list[str], is_let_in: bool
) -> None:
    """Two that take turns, so that one runs at any time, and leave no room for a third."""
    if not has_gate:
        without = [*without, "admission"]
    engine = engine_of(num_blocks=61, without=without)
    prompts = {"a": prompt_of(400, salt=1), "b": prompt_of(400, salt=2)}
    for name, prompt in prompts.items():
        engine.turn(prompt, job_id=name)
    busy = engine.add([*prompts["a"], 7], job_id="a")
    engine.step()
    new = engine.add(prompt_of(300, salt=3), **tags)
    assert engine.running() == [busy]
    for number in range(60):
        for name, prompt in prompts.items():
            engine.add([*prompt, number], max_tokens=8, job_id=name)
            engine.steps(5)
            assert engine.running()
    assert (new not in engine.waiting()) is is_let_in
    assert engine.totals.get("preemptions_total", 0) == 0
    due = events(engine, "due")
    assert len(due) == (is_let_in and bool(tags))
    assert all(event["passed"] <= 4 * 2 * PRIOR_TURNS for event in due)


def test_turns_behind_a_job_that_is_held_back_go_on_at_once() -> None:
    """Also those that arrived after it, and though no allocation has failed so far."""
    engine = engine_of(num_blocks=61)
    engine.turn(prompt_of(50, salt=1), job_id="early")
    engine.add(prompt_of(300, salt=2), max_tokens=40, job_id="a")
    engine.step()
    held = engine.add(prompt_of(300, salt=3), job_id="b")
    going_on = engine.add(prompt_of(70, salt=1), max_tokens=40, job_id="early")
    engine.step()
    engine.step()
    assert going_on in engine.running()
    assert engine.waiting() == [held]


def test_pressure_ends_and_the_order_is_stocks_again() -> None:
    """After a time without a shortage turns go by their own arrival."""
    engine = engine_of(max_num_seqs=1)
    engine.turn(prompt_of(40, salt=1), job_id="early")
    engine.add(prompt_of(20, salt=3), max_tokens=60, request_id="busy")
    engine.step()
    engine.retention.policy.pressure.rise(engine.clock.now_s, 0.05)
    engine.add(prompt_of(60, salt=2), request_id="other", job_id="other")
    engine.add(prompt_of(60, salt=1), request_id="early-2", job_id="early")
    assert engine.waiting() == ["early-2", "other"]
    engine.steps(8)
    assert engine.waiting() == ["other", "early-2"]


@pytest.mark.parametrize("window_tokens", [None, 8192])
def test_nothing_is_taken_in_vain_from_later_jobs(window_tokens: int | None) -> None:
    """Cached blocks of the turn's own context are free, and yet no room for the rest of it; and
    with two groups of blocks it needs twice as many."""
    engine = Engine(
        policy="agentkv",
        num_blocks=201 if window_tokens is None else 401,
        window_tokens=window_tokens,
        max_num_batched_tokens=4096,
        prefill_reload_s=[0.0, 1.0, 0.0],
    )
    old = engine.turn(prompt_of(16 * 60, salt=1), job_id="old")
    engine.turn(prompt_of(16 * 30, salt=2), job_id="later")
    engine.end_pin("old")
    engine.add(prompt_of(16 * 100, salt=3), max_tokens=1000)
    engine.step()
    before = engine.pinned
    back = engine.add(old + prompt_of(16 * 60, salt=4), job_id="old")
    engine.steps(3)
    assert engine.waiting() == [back]
    assert engine.pinned == before
