"""Names of policies."""

from __future__ import annotations

import pytest

from agentkv.evals.simulation.errors import SimulationError
from agentkv.evals.simulation.policies import parse_policy


def test_fcfs_is_stock() -> None:
    """It has no settings of ours, and so no tags and no signals."""
    assert parse_policy("fcfs").settings is None


def test_continuum_comes_in_two_sets_of_rules() -> None:
    """Those of the paper, and the released ones with a fixed TTL of 2 s."""
    assert parse_policy("continuum:paper").settings == {
        "policy": "continuum",
        "rules": "paper",
        "ttl": "paper",
    }
    assert parse_policy("continuum:released").settings == {
        "policy": "continuum",
        "rules": "released",
        "ttl": "fixed",
        "fixed_ttl_s": 2.0,
    }


def test_suffixes_add_up() -> None:
    """A DRAM tier and an unlimited pool go with any policy."""
    policy = parse_policy("context_serve+offload@infinite")
    assert policy.has_offload
    assert policy.is_infinite
    assert policy.settings == {"policy": "context_serve"}


@pytest.mark.parametrize(
    "name", ["", "lifo", "priority", "fcfs:paper", "fcfs@infinite+offload", "fcfs@", "FCFS"]
)
def test_unknown_names_list_the_known_ones(name: str) -> None:
    """Also `priority`, for which no workload has the numbers."""
    with pytest.raises(SimulationError, match=r"allowed are fcfs, continuum, context_serve"):
        parse_policy(name)
