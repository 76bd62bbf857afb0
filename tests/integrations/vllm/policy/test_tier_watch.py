"""What is learned of a tier: how much of what left the GPU it gives back, and how fast."""

from __future__ import annotations

import pytest

from agentkv.integrations.vllm.policy.costs import MIN_EVENTS, OffloadStats
from tests.integrations.vllm.harness import Clock


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
