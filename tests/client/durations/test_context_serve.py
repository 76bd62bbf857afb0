"""ContextServe's layers together: which of them decides."""

import json
import math

import pytest

from agentkv.commands import analyze_command
from agentkv.durations.context_serve import ContextServeEstimator
from agentkv.durations.trees import TreeEnsemble


def _trees(p_slow: float) -> TreeEnsemble:
    return TreeEnsemble([math.log(p_slow / (1 - p_slow))])


def _observed(
    command: str, durations_s: list[float], *, p_slow: float = 0.5
) -> ContextServeEstimator:
    estimator = ContextServeEstimator(_trees(p_slow))
    for duration_s in durations_s:
        estimator.observe(analyze_command(command), duration_s, censored=False)
    return estimator


@pytest.mark.parametrize(
    ("observed", "durations_s", "p_slow", "command", "source", "speed"),
    [
        # the lists win over whatever was observed
        ("ls", [60.0] * 10, 0.95, "ls", "rules", "fast"),
        ("pip install x", [0.1] * 10, 0.05, "pip install x", "rules", "slow"),
        # then the observed context, then the tool, also where they leave it open
        ("frobnicate", [30.0] * 10, 0.05, "frobnicate", "bayes", "slow"),
        ("go vet", [30.0] * 10, 0.05, "go test", "bayes", "slow"),
        ("go test", [3.0] * 10, 0.95, "go test", "bayes", "uncertain"),
        # then the trees, where they have a feature for the program
        ("go test", [3.0] * 4, 0.95, "go test", "boosted", "slow"),
        ("ls", [0.1] * 10, 0.05, "go test", "boosted", "fast"),
        # else nobody knows
        ("go test", [3.0] * 4, 0.5, "go test", "fallback", "uncertain"),
        ("ls", [0.1] * 10, 0.05, "frobnicate", "fallback", "uncertain"),
        ("ls", [0.1] * 10, 0.05, "", "fallback", "uncertain"),
    ],
)
def test_first_layer_that_knows_decides(
    observed: str,
    durations_s: list[float],
    p_slow: float,
    command: str,
    source: str,
    speed: str,
) -> None:
    """Rules, posterior of context or tool, trees, and else uncertain."""
    estimator = _observed(observed, durations_s, p_slow=p_slow)
    prediction = estimator.predict(analyze_command(command))
    assert (prediction.source, prediction.speed) == (source, speed)


def test_unknown_program_is_learned() -> None:
    """A made-up tool is uncertain at first and slow after ten slow runs."""
    command = analyze_command("frobnicate --all")
    assert ContextServeEstimator(_trees(0.5)).predict(command).speed == "uncertain"
    assert _observed("frobnicate --all", [20.0] * 10).predict(command).speed == "slow"


def test_fallback_says_what_is_missing() -> None:
    """The sentence names the program that no layer knows."""
    prediction = ContextServeEstimator(_trees(0.5)).predict(analyze_command("frobnicate"))
    assert prediction.explanation.startswith("No layer is sure of `frobnicate`")


def test_restored_estimator_predicts_the_same() -> None:
    """Saved and loaded, it says the same."""
    estimator, restored = _observed("frobnicate", [12.0] * 10), ContextServeEstimator(_trees(0.5))
    restored.restore(json.loads(json.dumps(estimator.state())))
    for text in ("frobnicate", "ls", "other"):
        command = analyze_command(text)
        assert restored.predict(command) == estimator.predict(command)
