"""Names of policies."""

from __future__ import annotations

from typing import Any

import pytest

from agentkv.errors import InputError
from agentkv.policies.names import simulated_policy

RELEASED = {"policy": "continuum", "rules": "released", "ttl": "fixed", "fixed_ttl_s": 2.0}


@pytest.mark.parametrize(
    ("name", "settings", "suffixes"),
    [
        ("fcfs", None, ""),
        ("continuum:paper", {"policy": "continuum", "rules": "paper", "ttl": "paper"}, ""),
        ("continuum:released", RELEASED, ""),
        ("context_serve+offload@infinite", {"policy": "context_serve"}, "+offload@infinite"),
        ('continuum:released{"fixed_ttl_s": 0.5}', {**RELEASED, "fixed_ttl_s": 0.5}, ""),
        ("fcfs{}@infinite", None, "@infinite"),
    ],
)
def test_a_name_stands_for_settings_and_suffixes(
    name: str, settings: dict[str, Any] | None, suffixes: str
) -> None:
    """Settings after the name are laid over its own; a tier and an unlimited pool go with any."""
    policy = simulated_policy(name)
    assert policy.engine_settings == settings
    assert policy.has_offload is ("+offload" in suffixes)
    assert policy.is_infinite is ("@infinite" in suffixes)


@pytest.mark.parametrize(
    "name",
    [
        *("", "lifo", "priority", "fcfs:paper", "fcfs@infinite+offload", "fcfs@", "FCFS"),
        *("fcfs@lossless", "fcfs+offload@lossless", "fcfs@infinite@lossless"),
    ],
)
def test_unknown_names_list_the_known_ones(name: str) -> None:
    """An unknown name, `priority` included, is refused with the known ones."""
    with pytest.raises(InputError, match=r"allowed are fcfs, continuum, context_serve"):
        simulated_policy(name)


def test_settings_have_one_spelling() -> None:
    """The name of a policy does not depend on spaces or order in its settings."""
    first = simulated_policy('continuum{"max_ttl_s": 5, "max_jobs": 10}')
    assert first == simulated_policy('continuum{"max_jobs":10,"max_ttl_s":5}')
    assert first.name == 'continuum{"max_jobs":10,"max_ttl_s":5}'
    assert simulated_policy("fcfs{}").name == "fcfs"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ('continuum{"max_ttl_s": -1}', "'max_ttl_s': Input should be greater than 0, got -1"),
        ('continuum{"no_such": 1}', "unknown key 'no_such'; valid keys: "),
        ('continuum{"policy": "fcfs"}', "the policy stands before the settings"),
        ("continuum{max_ttl_s: 5}", "is no JSON"),
        ('fcfs{"max_ttl_s": 5}', "fcfs is vLLM's and has no settings"),
    ],
)
def test_wrong_settings_are_told(name: str, message: str) -> None:
    """Invalid settings are refused with the plugin's own message."""
    with pytest.raises(InputError, match="--policy: got") as caught:
        simulated_policy(name)
    assert message in str(caught.value)
