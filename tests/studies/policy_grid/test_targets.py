"""The list of targets, met and not met."""

from __future__ import annotations

from typing import Any

import pytest

from studies.policy_grid.findings import Target, is_subject, regimes_of, targets
from tests.studies.policy_grid.made_rows import row

BASELINES = {"fcfs": 10.0, "continuum:paper": 8.0, "continuum:released": 4.0, "fcfs@infinite": 3.0}


def found(seconds: float, **values: Any) -> dict[str, Target]:
    """The targets by name, of a policy whose durations are so long."""
    rows = [row(policy, s) for policy, s in BASELINES.items()] + [row("agentkv", seconds, **values)]
    return {target.name: target for target in targets(regimes_of(rows), "agentkv")}


@pytest.mark.parametrize(
    ("name", "least_s"),
    [
        ("recorded tools: mean JCT over fcfs", 4.0),
        ("recorded tools: p99 JCT over fcfs", 5.5),
        ("recorded tools: mean JCT over continuum:released", 3.68),
        ("recorded tools: p99 JCT over continuum:released", 3.88),
        ("recorded tools: mean JCT over fcfs@infinite", 3.9),
        ("recorded tools: max JCT over continuum:paper", 8.0),
        ("recorded tools: max slowdown over fcfs", 10.0),
        ("recorded tools: continuing TTFT p99 over fcfs", 2.5),
    ],
)
def test_a_target_is_met_up_to_its_limit(name: str, least_s: float) -> None:
    """And not beyond it."""
    assert found(least_s * 0.999)[name].is_met is True
    assert found(least_s * 1.001)[name].is_met is False


def test_first_turns_are_told_without_a_limit() -> None:
    """Beside those of the continuing ones, never hidden."""
    target = found(20.0)["recorded tools: first-turn TTFT max over fcfs"]
    assert target.value == pytest.approx(2.0)
    assert target.is_met is None


def test_in_each_regime_the_slower_of_two_yardsticks_counts() -> None:
    """2 over 1, not over 0.5, and 6 over 2; the regime that lacks one of them is left out."""
    ideals_s, unlimited_s = {"1x": 0.5, "2x": 2.0}, {"1x": 1.0, "2x": 1.0, "burst": 1.0}
    rows = [row("fcfs", 10.0, load=load) for load in unlimited_s]
    rows += [row("ideal:in-order", seconds, load=load) for load, seconds in ideals_s.items()]
    rows += [row("fcfs@infinite", seconds, load=load) for load, seconds in unlimited_s.items()]
    ours_s = {"1x": 2.0, "2x": 6.0, "burst": 50.0}
    rows += [row("agentkv", seconds, load=load) for load, seconds in ours_s.items()]
    name = "recorded tools: mean JCT over ideal:in-order, or fcfs@infinite where that is slower"
    [target] = [target for target in targets(regimes_of(rows), "agentkv") if target.name == name]
    assert target.value == pytest.approx(6.0**0.5)
    assert (target.num_regimes, target.is_met) == (2, None)


def test_what_the_same_rules_reach_without_loss_is_told() -> None:
    """Where it was played, without a limit."""
    rows = [row("fcfs", 10.0), row("agentkv", 6.0), row("agentkv@lossless", 5.0)]
    by_name = {target.name: target for target in targets(regimes_of(rows), "agentkv")}
    target = by_name["recorded tools: mean JCT over agentkv@lossless"]
    assert (target.value, target.is_met) == (pytest.approx(1.2), None)
    assert "recorded tools: mean JCT over agentkv@lossless" not in found(6.0)


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    """Here: no light load."""
    target = found(1.0)["light load: largest distance of any figure from stock"]
    assert (target.value, target.is_met, target.num_regimes) == (None, None, 0)


def test_light_load_looks_at_every_figure() -> None:
    """The one furthest from stock counts, to either side, and where it was."""
    rows = [row("fcfs", 10.0, load="light"), row("agentkv", 10.0, load="light", p90_s=9.8)]
    [target] = [t for t in targets(regimes_of(rows), "agentkv") if "any figure" in t.name]
    assert target.value == pytest.approx(0.02)
    assert target.is_met is False
    assert target.worst.endswith("recorded, 3,000 blocks, light, p90_s")


def test_light_load_allows_no_preemption_of_its_own() -> None:
    """In no regime and with no seed, even if another has fewer."""
    rows = [row("fcfs", 1.0, load="light", seed=seed, preemptions=2) for seed in (0, 1)]
    rows += [row("agentkv", 1.0, load="light", seed=0, preemptions=0)]
    rows += [row("agentkv", 1.0, load="light", seed=1, preemptions=3)]
    [target] = [t for t in targets(regimes_of(rows), "agentkv") if "preemptions" in t.name]
    assert (target.value, target.is_met) == (1.0, False)


def test_the_smallest_pool_counts_by_its_worst_regime() -> None:
    """Over the better of stock and the released rules there."""
    rows = [row("fcfs", 10.0, load=load) for load in ("1x", "2x")]
    rows += [row("continuum:released", seconds, load=load) for load, seconds in
             (("1x", 5.0), ("2x", 20.0))]  # fmt: skip
    rows += [row("agentkv", 5.0, load="1x"), row("agentkv", 11.0, load="2x")]
    rows += [row(policy, 1.0, pool_blocks=9000) for policy in ("fcfs", "continuum:released")]
    rows += [row("agentkv", 9.0, pool_blocks=9000)]
    [target] = [t for t in targets(regimes_of(rows), "agentkv") if "the better of" in t.name]
    assert target.value == pytest.approx(1.1)
    assert target.worst.endswith("3,000 blocks, 2x")


def test_what_a_policy_costs_without_pressure_is_told() -> None:
    """Its worst regime of those, without a limit."""
    rows = [row("fcfs", 10.0, load=load, recomputed_share=0.01) for load in ("light", "1x")]
    rows += [row("agentkv", 9.0, load="light"), row("agentkv", 12.0, load="1x")]
    [target] = [t for t in targets(regimes_of(rows), "agentkv") if "no pressure" in t.name]
    assert target.value == pytest.approx(1.2)
    assert target.is_met is None


def test_ablations_have_targets_too() -> None:
    """But not an unlimited pool, nor others' policies."""
    names = ("agentkv", 'agentkv{"admission":false}', "agentkv@infinite", "fcfs", "continuum:paper")
    assert [is_subject(name) for name in names] == [True, True, False, False, False]
