"""ContextServe's predictor: what each layer says, and which of them decides."""

import math
import tomllib
from pathlib import Path

import pytest

from agentkv.commands import analyze_command
from agentkv.durations import context_serve
from agentkv.durations.context_serve import (
    COLD_START,
    MAX_WINDOWS,
    ContextServeEstimator,
    boosted_prediction,
    command_features,
    listed_speed,
)

TABLES = tomllib.loads(Path(__file__).with_name("verdicts.toml").read_text("utf-8"))


def learned(command: str, *durations_s: float) -> ContextServeEstimator:
    """All layers, with these runs of one command learned."""
    estimator = ContextServeEstimator()
    for duration_s in durations_s:
        estimator.observe(analyze_command(command), duration_s, censored=False)
    return estimator


def trees_say(monkeypatch: pytest.MonkeyPatch, p_slow: float) -> None:
    monkeypatch.setattr(context_serve, "_trees", lambda: [math.log(p_slow / (1 - p_slow))])


@pytest.mark.parametrize(
    ("command", "speed"),
    [(command, speed) for speed, texts in TABLES["context_serve"].items() for command in texts],
)
def test_the_rules_follow_the_lists(command: str, speed: str) -> None:
    """All fast is fast, one slow is slow, anything else is left to the next layer."""
    assert listed_speed(analyze_command(command))[0] == speed


@pytest.mark.parametrize(
    ("command", "ttl_s", "seconds", "p_over"), [("ls", 3.0, 1.0, 0.15), ("make", 0.0, 5.0, 0.85)]
)
def test_a_listed_program_is_as_sure_as_a_verdict(
    command: str, ttl_s: float, seconds: float, p_over: float
) -> None:
    """A fast one is pinned for 3 s, a slow one not at all; the distribution says it with 0.85."""
    prediction = ContextServeEstimator().predict(analyze_command(command))
    assert prediction.ttl_s == ttl_s
    assert prediction.p_over(seconds) == pytest.approx(p_over)


def test_windows_are_bounded_and_those_in_use_are_kept() -> None:
    """A fixed number of contexts and tools is kept, the latest observed ones."""
    estimator = learned("go test", 1.0)
    for number in range(MAX_WINDOWS + 10):
        estimator.observe(analyze_command(f"tool{number}"), 1.0, censored=False)
        estimator.observe(analyze_command("go test"), 1.0, censored=False)
    state = estimator.state()
    assert len(state) == MAX_WINDOWS
    assert {f"tool{MAX_WINDOWS + 9}", "go", "go:test", ""} <= set(state)
    assert "tool0" not in state


@pytest.mark.parametrize(
    ("durations_s", "speed"),
    [
        *(([0.1] * 10, "fast"), ([30.0] * 10, "slow"), ([3.0] * 10, "uncertain")),
        *(([0.1, 30.0] * 10, "uncertain"), ([0.1] * (COLD_START - 1), "uncertain")),
        *(([30.0] * (COLD_START - 1), "uncertain"), ([1e-3] * 10, "fast"), ([1e6] * 10, "slow")),
    ],
)
def test_the_posterior_needs_five_runs_and_085(durations_s: list[float], speed: str) -> None:
    """Fast and slow need over 0.85 after five runs, and fast is pinned for its 0.9 quantile."""
    command = analyze_command("frobnicate")
    prediction = learned("frobnicate", *durations_s).predict(command)
    assert prediction.speed == speed
    assert speed != "fast" or prediction.ttl_s == prediction.p90_s


@pytest.mark.parametrize(
    ("p_slow", "speed"),
    [(0.01, "fast"), (0.19, "fast"), (0.21, "uncertain"), (0.79, "uncertain"), (0.81, "slow")],
)
def test_the_trees_verdict_follows_their_probability(
    monkeypatch: pytest.MonkeyPatch, p_slow: float, speed: str
) -> None:
    """Slow is above 0.8, fast below 0.2; the distribution holds that probability at 5 s."""
    trees_say(monkeypatch, p_slow)
    prediction = boosted_prediction(analyze_command("x"))
    assert prediction.speed == speed
    assert prediction.p_over(5.0) == pytest.approx(p_slow)


def test_the_shipped_trees_read_25_features() -> None:
    """Their length is ContextServe's, and the shipped trees tell an install from a `grep`."""
    assert len(command_features(analyze_command("ls | wc"))) == 25
    slow, fast = (boosted_prediction(analyze_command(each)) for each in ("go test ./...", "grep x"))
    assert slow.p_over(5.0) > fast.p_over(5.0)


@pytest.mark.parametrize(
    ("observed", "durations_s", "p_slow", "command", "source", "speed"),
    [
        # the lists win over all observations
        ("ls", [60.0] * 10, 0.95, "ls", "rules", "fast"),
        ("pip install x", [0.1] * 10, 0.05, "pip install x", "rules", "slow"),
        # then the observed context, then the tool, also where they leave it open
        ("frobnicate", [30.0] * 10, 0.05, "frobnicate", "bayes", "slow"),
        ("go vet", [30.0] * 10, 0.05, "go test", "bayes", "slow"),
        ("go test", [3.0] * 10, 0.95, "go test", "bayes", "uncertain"),
        # then the trees, where they have a feature for the program
        ("go test", [3.0] * 4, 0.95, "go test", "boosted", "slow"),
        ("ls", [0.1] * 10, 0.05, "go test", "boosted", "fast"),
        # else it is uncertain
        ("go test", [3.0] * 4, 0.5, "go test", "fallback", "uncertain"),
        ("ls", [0.1] * 10, 0.05, "frobnicate", "fallback", "uncertain"),
        ("ls", [0.1] * 10, 0.05, "", "fallback", "uncertain"),
    ],
)
def test_the_first_layer_that_knows_decides(
    monkeypatch: pytest.MonkeyPatch,
    observed: str,
    durations_s: list[float],
    p_slow: float,
    command: str,
    source: str,
    speed: str,
) -> None:
    """Rules come first, then the posterior of context or tool, then the trees, else uncertain."""
    trees_say(monkeypatch, p_slow)
    prediction = learned(observed, *durations_s).predict(analyze_command(command))
    assert (prediction.source, prediction.speed) == (source, speed)
    name = command.partition(" ")[0]
    assert name in prediction.explanation or source == "boosted"
