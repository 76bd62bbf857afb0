"""Order of service: job-level first come, first served; stock order where no job is tagged."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv.integrations.vllm.engine.queue import RankedQueue
from tests.integrations.vllm.harness import STOCK, Engine
from tests.stepped_engine import prompt_of


def fill(engine: Engine) -> None:
    """Occupy the only slot."""
    engine.add(prompt_of(32, salt=50), max_tokens=100, request_id="busy")
    engine.step()


def test_later_turns_of_an_earlier_job_pass_a_later_job() -> None:
    """Jobs are served in the order in which they arrived, at any of their turns."""
    engine = Engine(max_num_seqs=1)
    engine.turn(prompt_of(20, salt=1), job_id="first")
    engine.retention.cache_reset()
    fill(engine)
    engine.add(prompt_of(20, salt=2), request_id="second-1", job_id="second")
    engine.add(prompt_of(30, salt=1), request_id="first-2", job_id="first")
    assert engine.waiting() == ["first-2", "second-1"]


def engine_with_two_waiting() -> Engine:
    """A turn whose blocks are pinned waits, and one of an earlier job without a pin."""
    engine = Engine(max_num_seqs=1)
    engine.turn(prompt_of(20, salt=1), job_id="early")
    engine.retention.cache_reset()
    engine.turn(prompt_of(40, salt=2), job_id="pinned")
    fill(engine)
    engine.add(prompt_of(30, salt=1), request_id="early-2", job_id="early")
    engine.add(prompt_of(60, salt=2), request_id="pinned-2", job_id="pinned")
    return engine


def test_a_pinned_job_passes_an_earlier_one_without_a_pin() -> None:
    """Tiers: turns whose blocks are pinned come before turns that must prefill."""
    engine = engine_with_two_waiting()
    assert engine.waiting() == ["pinned-2", "early-2"]
    engine.retention.cache_reset()
    assert engine.waiting() == ["early-2", "pinned-2"]


@pytest.mark.parametrize(
    ("rules", "order"), [("paper", ["old", "pin-2"]), ("released", ["pin-2", "old"])]
)
def test_a_preempted_turn_comes_first_in_the_paper_only(rules: str, order: list[str]) -> None:
    """The paper serves preempted turns before pinned ones; the released code has no such tier."""
    engine = Engine(rules=rules)
    engine.turn(prompt_of(40, salt=2), job_id="pin")
    engine.add(prompt_of(40, salt=1), max_tokens=50, request_id="old", job_id="old")
    engine.step()
    request = engine.scheduler.running.pop()
    engine.scheduler._preempt_request(request, engine.clock())
    engine.add(prompt_of(60, salt=2), request_id="pin-2", job_id="pin")
    assert engine.waiting() == order


def test_the_head_stays_the_head_between_peek_and_pop() -> None:
    """`schedule()` peeks, allocates, pops: a pin that ends in between must not swap the head."""
    engine = engine_with_two_waiting()
    queue: RankedQueue = engine.scheduler.waiting
    head = queue.peek_request()
    engine.retention.cache_reset()
    assert queue.pop_request() is head
    assert head.request_id == "pinned-2"


def test_the_queue_stays_small_however_often_ranks_change() -> None:
    """Also while nothing leaves it."""
    engine = Engine(policy="agentkv", max_num_seqs=1, without=["switch"])
    fill(engine)
    for number in range(50):
        engine.add(prompt_of(20, salt=number), job_id=f"job-{number}")
    queue: RankedQueue = engine.scheduler.waiting
    for number in range(100):
        for job in engine.retention.jobs:
            job.order = -job.order - number
        queue.rerank_all()
    assert len(queue) == 50
    assert sum(map(len, queue._heaps.values())) <= 2 * 50 + 64


WORKLOADS = st.lists(
    st.tuples(st.integers(1, 120), st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=12
)


@settings(max_examples=60, deadline=None)
@given(workload=WORKLOADS, num_blocks=st.integers(12, 40), is_async=st.booleans())
def test_without_a_job_id_every_step_is_exactly_stocks(
    workload: list[tuple[int, int, int]], num_blocks: int, is_async: bool
) -> None:
    """Same requests, same steps, same preemptions as the stock class, under pressure too.

    Without inference: a prompt that repeats another with its reply is a job's turn.
    """
    histories = [
        play(Engine(num_blocks=num_blocks, is_async=is_async, **kind), workload)
        for kind in ({"infer_jobs": False}, {"scheduler_class": STOCK[is_async]})
    ]
    assert histories[0] == histories[1]


def play(engine: Engine, workload: list[tuple[int, int, int]]) -> list[Any]:
    """Every step's scheduled tokens, waiting and running ids, free blocks."""
    history = []
    for salt, (num_prompt, num_output, num_steps) in enumerate(workload):
        engine.add(prompt_of(num_prompt, salt=salt % 5), max_tokens=num_output)
        for _ in range(num_steps):
            history.append(step(engine))
    for _ in range(400):
        if not engine.scheduler.has_unfinished_requests():
            break
        history.append(step(engine))
    return history


def step(engine: Engine) -> tuple[Any, ...]:
    output = engine.step()
    tokens = None if output is None else dict(output.num_scheduled_tokens)
    return tokens, engine.waiting(), engine.running(), engine.num_free


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["new", "again", "goes on", "without the reply", "edited"]),
        st.integers(0, 20),
        st.booleans(),
    ),
    max_size=14,
)


def num_pins_of(engine: Engine) -> int:
    return sum(event["event"] == "pinned" for job in engine.events.values() for event in job)


@settings(max_examples=60, deadline=None)
@given(moves=MOVES)
def test_of_requests_without_a_job_only_those_that_go_on_are_pinned(
    moves: list[tuple[str, int, bool]],
) -> None:
    """A request is pinned only if it repeats an ended prompt with its reply, of which a tool call
    may be written in another way, and goes on; or begins as one did that was continued."""
    engine = Engine(num_blocks=400)
    ended: list[tuple[list[int], list[int], bool]] = []
    continued: set[tuple[int, ...]] = set()
    for number, (move, place, has_call) in enumerate(moves):
        new = prompt_of(70, salt=100 + number)
        last, whole, _ = ended[place % len(ended)] if ended else ([], [], False)
        prompt = {
            "new": prompt_of(64, salt=place % 3) + new,
            "again": last or new,
            "goes on": whole + new,
            "without the reply": last + new,
            "edited": new[:16] + whole[16:] + new,
        }[move]
        goes_on = any(
            len(prompt) > len(known) and prompt[: len(known)] == known
            for before, all_of_it, is_call in ended
            for known in [before if is_call else all_of_it]
        )
        is_expected = tuple(prompt[:64]) in continued
        num_pins = num_pins_of(engine)
        said = f"It is number {number:03}." + "\n```bash\nls\n```" * has_call
        history = engine.turn(prompt, max_tokens=12, reply=said)
        is_pinned = num_pins_of(engine) > num_pins
        assert goes_on or is_expected or not is_pinned, (number, move)
        is_of_last = move == "goes on" and place % len(ended or [1]) == len(ended) - 1
        assert is_pinned or not is_of_last, (number, move)
        if goes_on:
            continued.add(tuple(prompt[:64]))
        ended.append((prompt, history, has_call))
    assert engine.lost_blocks() == []
