"""What TTLs cost, worked out by hand."""

from __future__ import annotations

import pytest

from agentkv.evals.predictor_regret import baseline_costs, forecast_costs, ttl_costs

from .trace_rows import forecast, row

WEIGHTS = {"reload_s": 4.0, "context_blocks": 10}


@pytest.mark.parametrize(
    ("duration_s", "ttl_s", "held", "in_vain", "rebuilds", "regret_s"),
    [
        (1.0, 3.0, 10, 0, 0, 0.0),  # returned within its TTL, as the oracle would have it
        (5.0, 3.0, 30, 30, 1, 3.0),  # 3 s in vain and the rebuild that the oracle pays too
        (5.0, 0.0, 0, 0, 1, 0.0),  # freed at once, rightly
        (1.0, 0.0, 0, 0, 1, 3.0),  # freed at once, wrongly: 4 s instead of 1
        (9.0, 9.0, 90, 0, 0, 5.0),  # held through, dearer than a rebuild
    ],
)
def test_one_turn(
    duration_s: float, ttl_s: float, held: float, in_vain: float, rebuilds: int, regret_s: float
) -> None:
    """Block-seconds held and in vain, rebuilds, and seconds above the oracle."""
    costs = ttl_costs([duration_s], [ttl_s], **WEIGHTS)
    assert costs["held_block_s"] == held
    assert costs["held_in_vain_block_s"] == in_vain
    assert costs["rebuilds"] == rebuilds
    assert costs["regret_s_per_turn"] == pytest.approx(regret_s)


@pytest.mark.parametrize(
    ("speed", "rebuilds", "held"), [("fast", 0, 20), ("slow", 1, 0), ("uncertain", 1, 10)]
)
def test_the_speed_decides_the_ttl(speed: str, rebuilds: int, held: float) -> None:
    """Fast takes the forecast's TTL, slow none, uncertain Continuum's."""
    one = forecast(row(2.0), speed=speed, ttl_s=5.0, continuum_ttl_s=1.0)
    costs = forecast_costs([one], **WEIGHTS)
    assert (costs["rebuilds"], costs["held_block_s"]) == (rebuilds, held)


def test_rows_known_to_be_short_only_are_left_out() -> None:
    """Whether their TTL was long enough is not known; a timed-out row's TTL is judged."""
    rows = [row(3.0, bound="upper"), row(9.0, bound="lower")]
    assert forecast_costs([forecast(r) for r in rows], **WEIGHTS)["num_turns"] == 1


def test_the_oracle_has_no_regret() -> None:
    """Nor is any other baseline below it."""
    forecasts = [forecast(row(duration_s)) for duration_s in (0.0, 0.5, 3.0, 4.5, 60.0)]
    baselines = baseline_costs(forecasts, **WEIGHTS)
    assert baselines["oracle"]["regret_s_per_turn"] == 0.0
    assert min(costs["regret_s_per_turn"] for costs in baselines.values()) == 0.0


def test_no_rows_cost_nothing() -> None:
    """An empty list is not a crash."""
    assert forecast_costs([], **WEIGHTS)["regret_s_per_turn"] == 0.0
