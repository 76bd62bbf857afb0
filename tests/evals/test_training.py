"""Offline trees: training is deterministic and small, bounds label where they decide."""

import json

import pytest

from agentkv.commands import analyze_command
from agentkv.commands.features import command_features
from agentkv.durations import OfflineModels
from agentkv.evals.commands.train_predictor import (
    MAX_BOOSTED_DEPTH,
    NUM_BOOSTED_TREES,
    labelled,
    train_boosted,
    train_prior,
)
from agentkv.evals.traces.commands import Bound, TracedCommand


def run(command: str, duration_s: float, bound: Bound = "exact") -> TracedCommand:
    return TracedCommand("trace", "session", 0.0, command, duration_s, bound)


RUNS = [
    run(f"{program} x{number}", duration_s + number / 100)
    for number in range(40)
    for program, duration_s in (("go test", 20.0), ("cat", 0.1), ("grep -r", 0.5), ("git push", 3))
]


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
    """A bound on the wrong side of 5 s says nothing and is left out."""
    assert [is_slow for _, is_slow in labelled([run("x", duration_s, bound)])] == labels


def test_trained_trees_are_deterministic_and_small() -> None:
    """The same runs and seed give the same trees, within the size that is shipped."""
    models, again = (
        OfflineModels(train_boosted(RUNS, seed=3), train_prior(RUNS, seed=3)) for _ in range(2)
    )
    assert models.to_dict() == again.to_dict()
    assert len(models.boosted.trees) <= NUM_BOOSTED_TREES
    assert max(map(_depth, models.boosted.trees)) <= MAX_BOOSTED_DEPTH
    written = json.loads(json.dumps(models.to_dict()))
    assert OfflineModels.from_dict(written).to_dict() == models.to_dict()


def _depth(node: object) -> int:
    return 1 + max(_depth(node[2]), _depth(node[3])) if isinstance(node, tuple) else 0


def test_context_serves_features_are_twenty_five() -> None:
    """ContextServe's boosted layer sees 25 features."""
    assert len(command_features(analyze_command("ls -la"))) == 25
