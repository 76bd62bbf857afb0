"""The Bayesian layer: when it speaks, what it says, and the three TTL rules."""

import json

import pytest

from agentkv.commands import analyze_command
from agentkv.durations.bayes import BayesEstimator, TTLRule
from agentkv.durations.levels import COLD_START


def _observed(
    durations_s: list[float],
    *,
    censored: bool = False,
    seed: int = 0,
    ttl_rule: TTLRule = "quantile",
) -> BayesEstimator:
    estimator = BayesEstimator(seed=seed, ttl_rule=ttl_rule)
    for duration_s in durations_s:
        estimator.observe(analyze_command("frobnicate"), duration_s, censored=censored)
    return estimator


@pytest.mark.parametrize(
    ("durations_s", "speed"),
    [
        ([0.1] * 10, "fast"),
        ([30.0] * 10, "slow"),
        ([3.0] * 10, "uncertain"),
        ([0.1, 30.0] * 10, "uncertain"),
        ([0.1] * (COLD_START - 1), "uncertain"),
        ([30.0] * (COLD_START - 1), "uncertain"),
        ([0.0] * 10, "fast"),
        ([1e6] * 10, "slow"),
    ],
)
def test_verdict_follows_the_posterior(durations_s: list[float], speed: str) -> None:
    """Fast and slow need probability over 0.85 and five observations."""
    estimator = _observed(durations_s)
    assert estimator.predict(analyze_command("frobnicate")).speed == speed


def test_tool_cut_off_at_five_minutes_is_slow() -> None:
    """Ten time-outs at 300 s make a tool slow, and slower than ten runs of 300 s."""
    cut = _observed([300.0] * 10, censored=True).predict(analyze_command("frobnicate"))
    measured = _observed([300.0] * 10).predict(analyze_command("frobnicate"))
    assert cut.speed == "slow"
    assert cut.p50_s > measured.p50_s


@pytest.mark.parametrize(("rule", "share"), [("quantile", 0.9), ("upper", 0.95)])
def test_ttl_is_a_quantile(rule: TTLRule, share: float) -> None:
    """The TTL of a fast command is the quantile that the rule names."""
    prediction = _observed([0.1, 0.2] * 10, ttl_rule=rule).predict(analyze_command("frobnicate"))
    assert prediction.ttl_s == prediction.distribution.quantile_s(share)


def test_thompson_ttl_depends_on_the_seed_alone() -> None:
    """The draw is the same however often one asks, and another under another seed."""
    command = analyze_command("frobnicate")
    first, same, other = (
        _observed([0.1, 0.2] * 10, ttl_rule="thompson", seed=seed) for seed in (1, 1, 2)
    )
    ttl_s = first.predict(command).ttl_s
    assert first.predict(command).ttl_s == ttl_s == same.predict(command).ttl_s
    assert other.predict(command).ttl_s != ttl_s


def test_thompson_ttl_is_drawn_anew_after_an_observation() -> None:
    """Otherwise one unlucky draw would hold for good."""
    command = analyze_command("frobnicate")
    estimator = _observed([0.1] * 300, ttl_rule="thompson")
    before_s = estimator.predict(command).ttl_s
    estimator.observe(command, 0.1, censored=False)
    assert estimator.predict(command).ttl_s != before_s


def test_explanation_gives_the_numbers() -> None:
    """A person reads what was observed, how often, and what follows."""
    prediction = _observed([30.0] * 10).predict(analyze_command("frobnicate"))
    assert prediction.explanation == (
        "Posterior after 10 runs of `frobnicate`: half end within 22 s, 1% within 1 s, "
        "91% take over 5 s."
    )


def test_restored_estimator_predicts_the_same() -> None:
    """Saved and loaded, it says the same of every command, Thompson's draws included."""
    estimator = _observed([0.1, 0.3, 0.2] * 5, ttl_rule="thompson")
    restored = BayesEstimator(ttl_rule="thompson")
    restored.restore(json.loads(json.dumps(estimator.state())))
    for text in ("frobnicate", "frobnicate x | tail", "other", ""):
        command = analyze_command(text)
        assert restored.predict(command) == estimator.predict(command)


@pytest.mark.parametrize("num_observed", [None, "many", 1.5, float("inf")])
def test_foreign_state_is_refused(num_observed: object) -> None:
    """State of another shape is an error."""
    state = {**BayesEstimator().state(), "num_observed": num_observed}
    with pytest.raises(TypeError):
        BayesEstimator().restore(state)
