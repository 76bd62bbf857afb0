"""The cost of recomputing a context is learned from the steps of the engine."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from agentkv.durations.ttl import PrefillReload
from agentkv.integrations.vllm.retention.costs import (
    MIN_EVENTS,
    MIN_FIXED_SHARE,
    MIN_PREFILLS,
    OffloadStats,
    Step,
    StepTimeModel,
)
from tests.stepped_engine import Clock

from ..harness import Engine

FIXED_S, TOKEN_S, SQUARE_S, RUNNING_S = 7e-3, 2.3e-5, 4e-10, 5e-8
"""About an 8B model on an H100."""


def seconds(step: Step) -> float:
    one_s = (
        FIXED_S
        + TOKEN_S * step.prefill_tokens
        + SQUARE_S * step.prefill_squares
        + RUNNING_S * step.running_tokens
    )
    return one_s * step.num_steps


def prefill(num_new: int, num_hit: int = 0, *, running: int = 20_000, idle: float = 0.0) -> Step:
    return Step(num_new, (num_hit + num_new) ** 2 - num_hit**2, running, idle)


def decoding(count: int = 1, *, running: int = 20_000, idle: float = 0.0) -> Step:
    return Step(0, 0, running, idle, count)


def fitted(steps: list[Step], *, noise: float = 0.0, given: Any = None) -> StepTimeModel:
    chance = random.Random(5)
    fit = StepTimeModel(given)
    for step in steps:
        fit.observe(step, seconds(step) * chance.uniform(1 - noise, 1 + noise))
    return fit


def mixed(num: int, *, decodes_each: int = 3, idle: float = 0.0) -> list[Step]:
    """Prefills of all lengths and depths, each followed by steps that only decode."""
    chance = random.Random(7)
    steps = []
    for _ in range(num):
        num_new, num_hit = chance.randrange(50, 4000), chance.randrange(8000)
        steps.append(prefill(num_new, num_hit, running=chance.randrange(5_000, 45_000), idle=idle))
        for _ in range(decodes_each):
            steps.append(decoding(running=chance.randrange(5_000, 45_000), idle=idle))
    return steps


def test_the_price_is_what_a_context_adds_to_the_steps() -> None:
    """With 5% noise, of 4,000 tokens within 10%; the fixed part of a step is not in it."""
    fit = fitted(mixed(200), noise=0.05)
    assert fit.reload.seconds(4000) == pytest.approx(4000 * TOKEN_S + 4000**2 * SQUARE_S, rel=0.1)
    assert fit.reload.constant_s == 0.0
    assert fit.step_s == pytest.approx(FIXED_S, rel=0.1)


def test_prompts_that_share_a_step_share_its_time() -> None:
    """Four prompts of 1,000 tokens in a step that takes four times as long cost what one does."""
    four = Step(4000, 4 * 1000**2, 20_000, 0.0)
    steps = [step for _ in range(40) for step in (four, prefill(500), decoding(), decoding())]
    fit = fitted(steps)
    assert fit.reload.seconds(1000) == pytest.approx(1000 * TOKEN_S + 1000**2 * SQUARE_S, rel=0.05)


@pytest.mark.parametrize("decodes_each", [1, 10, 100])
def test_computing_is_worth_more_where_it_takes_more_of_the_time(decodes_each: int) -> None:
    """The part of the pool that is not idle, over the part of the time that is fixed."""
    steps = mixed(100, decodes_each=decodes_each, idle=0.25)
    fixed_share = len(steps) * FIXED_S / sum(map(seconds, steps))
    assert fitted(steps).compute_weight == pytest.approx(0.75 / fixed_share, rel=0.1)


def test_steps_played_at_once_count_as_many() -> None:
    """The simulator plays a hundred decoding steps in one: the same price and worth."""
    steps = mixed(50)
    one_by_one = [each for step in steps for each in (step, *[decoding()] * 100)]
    at_once = [each for step in steps for each in (step, decoding(100))]
    slow, fast = fitted(one_by_one), fitted(at_once)
    assert fast.reload.seconds(3000) == pytest.approx(slow.reload.seconds(3000), rel=1e-6)
    assert fast.compute_weight == pytest.approx(slow.compute_weight, rel=1e-6)


def test_the_price_never_falls_with_length() -> None:
    """Prefills that seem to get faster with length still give no negative coefficient."""
    fit = StepTimeModel()
    for num_new in range(100, 5000, 100):
        fit.observe(prefill(num_new), 1.0 - num_new / 10_000)
        fit.observe(decoding(), 0.5)
    assert min(fit.reload.linear_s, fit.reload.quadratic_s) >= 0
    assert 0 < fit.compute_weight <= 1 / MIN_FIXED_SHARE


def test_worth_is_bounded() -> None:
    """Where no part of a step seems fixed, and where no time passes at all."""
    fit = StepTimeModel()
    for num_new in range(100, 5000, 100):
        fit.observe(prefill(num_new, running=0), num_new * TOKEN_S)
    assert fit.compute_weight == pytest.approx(1 / MIN_FIXED_SHARE)
    still = StepTimeModel()
    for num_new in range(100, 5000, 100):
        still.observe(prefill(num_new), 0.0)
    assert (still.compute_weight, still.reload.seconds(1000)) == (1.0, 0.0)


def test_few_prefills_give_a_rate() -> None:
    """Before the fit is trusted: seconds per token, of the steps with prompts alone."""
    fit = StepTimeModel()
    for _ in range(MIN_PREFILLS - 1):
        fit.observe(prefill(1000), 2.0)
        fit.observe(decoding(), 1.0)
    assert fit.reload.seconds(500) == pytest.approx(1.0)
    assert fit.compute_weight == 1.0


def test_given_coefficients_are_kept() -> None:
    """Settings win over what is measured; what computing is worth is measured all the same."""
    given = PrefillReload(1.0, 2.0, 3.0)
    fit = fitted(mixed(100), given=given)
    assert (fit.step_s, fit.reload) == (0.0, given)
    assert fit.compute_weight != 1.0


def test_the_window_forgets() -> None:
    """After a change of hardware, so to say: ten times as slow, and the past is gone."""
    fit = fitted(mixed(300))
    for step in mixed(300):
        fit.observe(step, 10 * seconds(step))
    whole_s = 10 * (4000 * TOKEN_S + 4000**2 * SQUARE_S)
    assert fit.reload.seconds(4000) == pytest.approx(whole_s, rel=0.02)


def step_s(output: Any) -> float:
    """Of a machine that takes 10 ms a step and 0.1 ms a token more."""
    return 0.01 + 1e-4 * float(output.total_num_scheduled_tokens)


def prompt(number: int, num_tokens: int) -> list[int]:
    return [1000 * (number + 1) + position for position in range(num_tokens)]


def test_an_engine_learns_what_its_machine_takes(make_engine: Callable[..., Engine]) -> None:
    """Prompts in chunks, several in a step, next to requests that decode; Continuum's PrefillReload
    is of prompts alone, so that a step's fixed part is in it, too."""
    engine = make_engine(num_blocks=400)
    chance = random.Random(3)
    for number in range(60):
        engine.add(prompt(number, chance.randrange(20, 900)), max_tokens=chance.randrange(2, 20))
        for _ in range(chance.randrange(4)):
            engine.step(step_s=step_s)
    while engine.scheduler.has_requests():
        engine.step(step_s=step_s)
    rebuild = engine.retention.costs.cost(600)
    assert rebuild.compute_s == pytest.approx(0.06, rel=0.1)
    assert rebuild.alone_s == pytest.approx(0.07, rel=0.1)


def test_a_prompt_that_ends_early_is_forgotten(make_engine: Callable[..., Engine]) -> None:
    """Aborted in its prefill, or scheduled in a step whose outputs never come."""
    engine = make_engine(num_blocks=400, policy="agentkv", max_num_batched_tokens=64)
    watch = engine.scheduler._timer
    aborted = engine.add(prompt(1, 500))
    engine.step()
    engine.abort(aborted)
    engine.add(prompt(2, 20), max_tokens=2)
    engine.run()
    assert not watch._prefilling
    engine.add(prompt(3, 20), max_tokens=200)
    for _ in range(100):
        engine.scheduler.schedule()
    assert len(watch._under_way) <= 16


@pytest.fixture
def clock() -> Clock:
    return Clock()


def load(watch: OffloadStats, clock: Clock, num_tokens: int, seconds: float) -> None:
    watch.load_began("request", num_tokens)
    clock.now_s += seconds
    watch.loads_finished(["request"])


def test_a_token_waits_for_its_part_of_the_loads(clock: Clock) -> None:
    """400 tokens in 0.8 s, however they are spread over loads."""
    watch = OffloadStats(clock)
    load(watch, clock, 100, 0.2)
    load(watch, clock, 300, 0.6)
    assert watch.load_token_s == pytest.approx(0.002)


def test_the_share_counts_what_was_computed_anew(clock: Clock) -> None:
    """A tier that is too small, or has other things, gives back only a part."""
    watch = OffloadStats(clock)
    for _ in range(50):
        load(watch, clock, 300, 0.1)
        watch.lost(100)
    assert watch.loaded_share == pytest.approx(0.75, abs=0.01)


def test_a_load_says_what_memory_waited_for_it(clock: Clock) -> None:
    """The token-seconds of those that are done, once each."""
    watch = OffloadStats(clock)
    watch.load_began("first", 100)
    clock.now_s += 1.0
    watch.load_began("second", 300)
    clock.now_s += 0.5
    assert watch.loads_finished(["first", "unknown"]) == 150.0
    assert watch.loads_finished(["first", "second"]) == 150.0


def test_nothing_is_said_before_enough_was_seen(clock: Clock) -> None:
    """One lucky load is no tier."""
    watch = OffloadStats(clock)
    for number in range(MIN_EVENTS):
        assert watch.loaded_share == 0.0, number
        load(watch, clock, 300, 0.1)
    assert watch.loaded_share == 1.0


def test_it_forgets_how_it_was(clock: Clock) -> None:
    """A link that has become slow, a tier that has become full."""
    watch = OffloadStats(clock)
    for _ in range(200):
        load(watch, clock, 100, 0.1)
    for _ in range(400):
        load(watch, clock, 100, 1.0)
    assert watch.load_token_s == pytest.approx(0.01, rel=0.02)
    for _ in range(400):
        watch.lost(100)
    assert watch.loaded_share == pytest.approx(0.0, abs=0.01)


def test_a_load_that_never_ends_leaves_nothing(clock: Clock) -> None:
    """The request was aborted meanwhile; what comes later of it does not count."""
    watch = OffloadStats(clock)
    watch.load_began("aborted", 100)
    assert watch.is_loading
    watch.forget("aborted")
    assert not watch.is_loading
    watch.loads_finished(["aborted"])
    assert watch.load_token_s == 0.0
