"""Continuum's TTL arithmetic, against brute force where there is a closed form."""

import math
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.durations.ttl import HOLD_SHARES, ContinuumTTL, FixedTTL, best_hold_s
from agentkv.durations.windows import MAX_TOOLS, DurationWindow, Memoryfulness, ToolDurations

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


def test_the_time_left_is_the_mean_of_those_that_took_longer() -> None:
    """Of 1, 30 and 50 s, after 10 s 30 are left; after more than any, as long again."""
    window = DurationWindow(10)
    assert window.expected_left_s(5.0) == 0.0
    for duration_s in (30.0, 1.0, 50.0):
        window.observe(duration_s)
    expected = {0.0: 27.0, 10.0: 30.0, 30.0: 20.0, 60.0: 60.0}
    assert {elapsed_s: window.expected_left_s(elapsed_s) for elapsed_s in expected} == expected


def test_a_cold_start_uses_the_default() -> None:
    """Under K durations in all the TTL is the default, and under K of a tool it is that of all."""
    rule = ContinuumTTL(cold_start_ttl_s=2.0, cold_start_samples=100)
    for _ in range(99):
        rule.durations.observe("ls", 0.1)
    assert rule.ttl("ls", 10.0).seconds == 2.0
    rule.durations.observe("ls", 0.1)
    rule.durations.observe("make", 60.0)
    for tool in ("ls", "make", None):
        assert rule.ttl(tool, 10.0).seconds == 0.1


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


@pytest.mark.parametrize(
    ("p_over", "price_s", "least_s", "most_s"),
    [
        (lambda t: float(t < 0.1), 1.0, 0.1, HOLD_SHARES[-1]),
        (lambda t: float(t < 50.0), 1.0, 0.0, 0.0),
        (lambda t: math.exp(-t / 0.5), 1.0, HOLD_SHARES[-1], HOLD_SHARES[-1]),
        (lambda t: math.exp(-t / 4.0), 1.0, 0.0, 0.0),
        (lambda t: 0.2 + 0.8 * math.exp(-t / 0.1), 4.0, 0.1, 4.0),
    ],
    ids=["surely soon", "surely late", "memoryless, cheap", "memoryless, dear", "long tail"],
)
def test_memory_is_held_while_a_return_is_worth_it(
    p_over: Callable[[float], float], price_s: float, least_s: float, most_s: float
) -> None:
    """A sure return is held for, a late one is not, and of a long tail only the body is."""
    assert least_s <= best_hold_s(p_over, price_s) <= most_s


@given(st.floats(0.001, 1000.0), st.floats(0.001, 1000.0), st.floats(0.0, 1.0))
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
