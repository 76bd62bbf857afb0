"""Rows by regime, and ratios over seeds and regimes."""

from __future__ import annotations

import pytest

from studies.policy_grid.findings import Spread, geometric_mean, over_regimes, regimes_of
from tests.studies.policy_grid.made_rows import row


def test_ratios_are_between_the_same_jobs() -> None:
    """Seed by seed; their geometric mean, and the least and largest."""
    rows = [row("fcfs", 10.0, seed=0), row("fcfs", 40.0, seed=1)]
    rows += [row("agentkv", 5.0, seed=0), row("agentkv", 80.0, seed=1)]
    [regime] = regimes_of(rows)
    assert regime.ratio("agentkv", "mean_s") == Spread(pytest.approx(1.0), 0.5, 2.0, 2)


def test_a_seed_without_its_counterpart_does_not_count() -> None:
    """Such as one whose unit failed."""
    rows = [row("fcfs", 10.0, seed=0), row("fcfs", 0.0, seed=1, error="stuck")]
    rows += [row("agentkv", 5.0, seed=0), row("agentkv", 80.0, seed=1)]
    [regime] = regimes_of(rows)
    assert regime.ratio("agentkv", "mean_s") == Spread(0.5, 0.5, 0.5, 1)
    assert regime.ratio("continuum:paper", "mean_s") is None


def test_pressure_is_what_stock_recomputes() -> None:
    """More than a fifth of what it computes, whatever other policies do."""
    for share, is_pressured in ((0.2, False), (0.201, True)):
        rows = [row("fcfs", 1.0, recomputed_share=share)]
        rows += [row("agentkv", 1.0, recomputed_share=1.0 - share)]
        [regime] = regimes_of(rows)
        assert regime.is_pressured is is_pressured


def test_without_stock_there_is_no_pressure() -> None:
    """Nothing is known of it."""
    [regime] = regimes_of([row("agentkv", 1.0)])
    assert not regime.is_pressured


def test_regimes_come_in_order() -> None:
    """Pools and loads from low on, tools as they came."""
    places = [(tools, pool, load) for tools in ("recorded", "longtail") for pool in (3000, 9000)
              for load in ("light", "1x", "2x")]  # fmt: skip
    shuffled = [*places[:1], *reversed(places[1:])]
    rows = [row("fcfs", 1.0, tools=t, pool_blocks=p, load=load) for t, p, load in shuffled]
    assert [(r.tools, r.pool_blocks, r.load) for r in regimes_of(rows)] == places


def test_regimes_weigh_the_same() -> None:
    """The geometric mean of their ratios, over those that have one."""
    rows = [row("fcfs", 1.0, load=load) for load in ("light", "1x", "2x")]
    rows += [row("agentkv", 4.0, load="1x"), row("agentkv", 1.0, load="2x")]
    assert over_regimes(regimes_of(rows), "agentkv", "mean_s") == (pytest.approx(2.0), 2)
    assert over_regimes([], "agentkv", "mean_s") == (None, 0)


def test_a_geometric_mean_with_a_zero_is_zero() -> None:
    """Where a logarithm would fail."""
    assert geometric_mean([0.0, 4.0]) == 0.0
