"""The boosted layer: verdicts from log-odds, and training that is deterministic."""

import math

import pytest

from agentkv.commands import analyze_command
from agentkv.commands.features import FEATURES, command_features
from agentkv.durations.boosted import BoostedEstimator
from agentkv.durations.boosted_training import MAX_DEPTH, NUM_TREES, labelled, train_boosted
from agentkv.durations.observation import Bound, Observation
from agentkv.durations.trees import TreeEnsemble

OBSERVATIONS = [
    Observation(f"{program} x{number}", duration_s + number / 100)
    for number in range(40)
    for program, duration_s in (("go test", 20.0), ("cat", 0.1), ("grep -r", 0.5), ("git push", 3))
]


@pytest.mark.parametrize(
    ("p_slow", "speed"),
    [(0.01, "fast"), (0.19, "fast"), (0.21, "uncertain"), (0.79, "uncertain"), (0.81, "slow")],
)
def test_verdict_follows_the_probability(p_slow: float, speed: str) -> None:
    """Slow above 0.8, fast below 0.2."""
    trees = TreeEnsemble([math.log(p_slow / (1 - p_slow))])
    assert BoostedEstimator(trees).predict(analyze_command("x")).speed == speed


@pytest.mark.parametrize("p_slow", [0.05, 0.5, 0.95])
def test_distribution_holds_the_probability(p_slow: float) -> None:
    """The probability of more than 5 s is the one the trees give."""
    trees = TreeEnsemble([math.log(p_slow / (1 - p_slow))])
    prediction = BoostedEstimator(trees).predict(analyze_command("x"))
    assert prediction.p_over(5.0) == pytest.approx(p_slow)
    assert prediction.p50_s < prediction.p90_s


@pytest.mark.parametrize("log_odds", [-1e9, 1e9])
def test_extreme_scores_stay_in_range(log_odds: float) -> None:
    """However sure the trees are, the distribution is one."""
    prediction = BoostedEstimator(TreeEnsemble([log_odds])).predict(analyze_command("x"))
    assert 0 < prediction.p_over(5.0) < 1
    assert 0 < prediction.p90_s < 1e6


@pytest.mark.parametrize(
    ("duration_s", "bound", "labels"),
    [
        (6.0, "exact", [True]),
        (4.0, "exact", [False]),
        (6.0, "lower", [True]),
        (4.0, "lower", []),
        (6.0, "upper", []),
        (3.0, "upper", [False]),
    ],
)
def test_bounds_label_where_they_decide(
    duration_s: float, bound: Bound, labels: list[bool]
) -> None:
    """A bound on the wrong side of 5 s tells nothing and is left out."""
    observed = [Observation("x", duration_s, bound)]
    assert [is_slow for _, is_slow in labelled(observed)] == labels


def test_trained_trees_are_deterministic_and_small() -> None:
    """The same observations and seed give the same trees, within the size that is shipped."""
    pytest.importorskip("lightgbm")
    trees = train_boosted(OBSERVATIONS, seed=3)
    assert trees.to_list() == train_boosted(OBSERVATIONS, seed=3).to_list()
    assert len(trees) <= NUM_TREES
    assert max(map(_depth, trees.to_list())) <= MAX_DEPTH


def test_trained_trees_tell_slow_from_fast() -> None:
    """What was slow in training is slow, by its features: the arguments are new."""
    pytest.importorskip("lightgbm")
    estimator = BoostedEstimator(train_boosted(OBSERVATIONS))
    assert estimator.predict(analyze_command("go test y")).speed == "slow"
    assert estimator.predict(analyze_command("cat y")).speed == "fast"


def test_one_kind_of_commands_cannot_train() -> None:
    """Training on fast commands alone is an error that says so."""
    pytest.importorskip("lightgbm")
    with pytest.raises(ValueError, match="over and under 5 s"):
        train_boosted([Observation("ls", 0.1)] * 50)


def test_features_are_twenty_five() -> None:
    """ContextServe's layer sees 25 features."""
    assert len(FEATURES) == len(command_features(analyze_command("ls -la"))) == 25


def _depth(node: object) -> int:
    return 1 + max(_depth(node[2]), _depth(node[3])) if isinstance(node, list) else 0
