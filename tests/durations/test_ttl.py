"""Continuum's TTL arithmetic, against brute force where there is a closed form."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.durations.ttl import (
    HOLD_SHARES,
    MAX_TOOLS,
    ContinuumTTL,
    DurationWindow,
    FixedTTL,
    Memoryfulness,
    PrefillReload,
    ToolDurations,
    best_hold_s,
)

DURATIONS = st.lists(st.floats(0, 100), min_size=1, max_size=40)


@given(durations=DURATIONS, benefit_s=st.floats(0, 50))
def test_the_ttl_maximises_the_papers_objective(durations: list[float], benefit_s: float) -> None:
    """No candidate tau gains more than the one chosen."""
    window = DurationWindow(100)
    for duration_s in durations:
        window.observe(duration_s)

    def gain_s(tau_s: float) -> float:
        return sum(d <= tau_s for d in durations) / len(durations) * benefit_s - tau_s

    chosen_s = window.best_ttl_s(benefit_s)
    assert gain_s(chosen_s) == pytest.approx(max(map(gain_s, [0.0, *durations])))


@given(durations=DURATIONS, size=st.integers(1, 10))
def test_a_window_forgets_the_oldest(durations: list[float], size: int) -> None:
    """Only the last `size` durations count."""
    window = DurationWindow(size)
    for duration_s in durations:
        window.observe(duration_s)
    last = durations[-size:]
    assert len(window) == len(last)
    assert window.mean_s == pytest.approx(statistics.fmean(last), abs=1e-6)
    assert window.share_at_most(50.0) == sum(d <= 50.0 for d in last) / len(last)


def test_eta_is_one_for_jobs_of_equal_length() -> None:
    """With equal lengths each turn served is one turn less to come, so eta is 1."""
    memoryfulness = Memoryfulness()
    for _ in range(5):
        memoryfulness.observe(8)
    assert memoryfulness.eta == pytest.approx(1.0)


def test_eta_is_near_zero_for_memoryless_jobs() -> None:
    """With geometric lengths the turns served say nothing of those to come."""
    chance = random.Random(7)
    memoryfulness = Memoryfulness(num_jobs=4000)
    for _ in range(4000):
        length = 1
        while chance.random() < 0.9:
            length += 1
        memoryfulness.observe(length)
    assert memoryfulness.eta < 0.1


@given(lengths=st.lists(st.integers(1, 30), min_size=2, max_size=30), kept=st.integers(2, 10))
def test_eta_equals_the_correlation_over_the_jobs_kept(lengths: list[int], kept: int) -> None:
    """The closed-form sums give -Corr(k, N - k), clamped to 0..1."""
    memoryfulness = Memoryfulness(num_jobs=kept)
    for length in lengths:
        memoryfulness.observe(length)
    points = [(k, n - k) for n in lengths[-kept:] for k in range(1, n + 1)]
    served, left = zip(*points, strict=True)
    if len(set(served)) < 2 or len(set(left)) < 2:
        assert memoryfulness.eta == 1.0
    else:
        expected = -statistics.correlation(served, left)
        assert memoryfulness.eta == pytest.approx(min(1.0, max(0.0, expected)), abs=1e-9)


def test_a_cold_start_uses_the_default() -> None:
    """With fewer than K durations in all the TTL is the fixed default."""
    rule = ContinuumTTL(cold_start_ttl_s=2.0, cold_start_samples=100)
    for _ in range(99):
        rule.durations.observe("ls", 0.1)
    assert rule.ttl("ls", 10.0).seconds == 2.0
    rule.durations.observe("ls", 0.1)
    assert rule.ttl("ls", 10.0).seconds == 0.1


def test_an_unknown_tool_uses_the_distribution_over_all() -> None:
    """A tool with fewer than K durations has the TTL of the distribution over all tools."""
    rule = ContinuumTTL(cold_start_samples=10)
    for _ in range(10):
        rule.durations.observe("ls", 0.1)
    rule.durations.observe("make", 60.0)
    assert rule.ttl("make", 5.0).seconds == 0.1
    assert rule.ttl(None, 5.0).seconds == 0.1


def test_the_benefit_adds_queueing_and_reload() -> None:
    """B = T * eta + PrefillReload: a tool of 3 s is waited for when B exceeds 3 s."""
    rule = ContinuumTTL(cold_start_samples=1)
    rule.durations.observe("build", 3.0)
    assert rule.ttl("build", 2.0).seconds == 0.0
    rule.queueing.observe(2.0)
    assert rule.ttl("build", 2.0).seconds == 3.0


def test_the_fixed_ttl_skips_tools_slower_than_itself() -> None:
    """As in the released code, a tool whose mean exceeds 2 s is not pinned."""
    rule = FixedTTL(2.0)
    rule.durations.observe("pytest", 9.0)
    assert rule.ttl("pytest").seconds == 0.0
    assert rule.ttl("ls").seconds == rule.ttl(None).seconds == 2.0


def test_tools_are_bounded_in_number() -> None:
    """Beyond the limit the tool not seen for longest is dropped."""
    durations = ToolDurations()
    for index in range(MAX_TOOLS + 1):
        durations.observe(f"tool{index}", 1.0)
    assert durations.of("tool0") is None
    assert durations.of(f"tool{MAX_TOOLS}") is not None


def test_prefill_reload_is_quadratic() -> None:
    """Rebuilding n tokens takes c0 + c1 n + c2 n^2 seconds."""
    assert PrefillReload(1.0, 0.5, 0.25).seconds(4) == 1.0 + 2.0 + 4.0


def step(duration_s: float) -> object:
    """The distribution of a wait that takes exactly this long."""
    return lambda seconds: 1.0 if seconds < duration_s else 0.0


def test_what_surely_comes_back_soon_is_held() -> None:
    """Memory needed again after a tenth of its price is held until then."""
    assert best_hold_s(step(0.1), 1.0) >= 0.1  # type: ignore[arg-type]


def test_what_surely_takes_longer_than_its_price_is_let_go_at_once() -> None:
    """Memory that is cheaper to rebuild than to hold is let go at once."""
    assert best_hold_s(step(50.0), 1.0) == 0.0  # type: ignore[arg-type]


def test_a_memoryless_wait_is_held_for_long_or_not_at_all() -> None:
    """With a constant chance of return, if a second is worth holding, so is the next one."""
    assert best_hold_s(lambda t: math.exp(-t / 0.5), 1.0) == HOLD_SHARES[-1]
    assert best_hold_s(lambda t: math.exp(-t / 4.0), 1.0) == 0.0


def test_a_long_tail_is_held_through_its_body_only() -> None:
    """Waits that are mostly short, sometimes endless, are held while the short ones return."""
    hold_s = best_hold_s(lambda t: 0.2 + 0.8 * math.exp(-t / 0.1), 4.0)
    assert 0.1 < hold_s < 4.0


@given(
    price_s=st.floats(0.001, 1000.0),
    rate=st.floats(0.001, 1000.0),
    tail=st.floats(0.0, 1.0),
)
def test_the_hold_time_is_no_dearer_than_letting_go(
    price_s: float, rate: float, tail: float
) -> None:
    """The expected cost is at most the price, for any distribution."""

    def p_over(seconds: float) -> float:
        return tail + (1.0 - tail) * math.exp(-rate * seconds)

    hold_s = best_hold_s(p_over, price_s)
    held_s = tail * hold_s + (1.0 - tail) * (1.0 - math.exp(-rate * hold_s)) / rate
    # the trapezium over-estimates a convex curve, so that the true cost is below the one weighed
    assert held_s + p_over(hold_s) * price_s <= price_s * (1.0 + 1e-9)
    assert hold_s == pytest.approx(0.0) or hold_s <= HOLD_SHARES[-1] * price_s
