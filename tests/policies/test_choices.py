"""The policies that servers run and the simulator plays, by the names that commands take."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest

from agentkv.errors import InputError
from agentkv.policies.names import read_settings, server_policy, simulated_policy

PAPER = {"policy": "continuum", "rules": "paper", "ttl": "paper"}
RELEASED = {"policy": "continuum", "rules": "released", "ttl": "fixed", "fixed_ttl_s": 2.0}


@pytest.mark.parametrize(
    ("name", "settings", "suffixes"),
    [
        ("fcfs", None, ""),
        ("continuum:paper", PAPER, ""),
        ("continuum:released", RELEASED, ""),
        ("context_serve+offload@infinite", {"policy": "context_serve"}, "+offload@infinite"),
        ('continuum:released{"fixed_ttl_s": 0.5}', {**RELEASED, "fixed_ttl_s": 0.5}, ""),
        ("fcfs{}@infinite", None, "@infinite"),
    ],
)
def test_a_name_stands_for_settings_and_suffixes(
    name: str, settings: dict[str, Any] | None, suffixes: str
) -> None:
    """Settings after the name are laid over its own, and the plugin takes them; a tier and an
    unlimited pool go with any."""
    policy = simulated_policy(name)
    assert policy.engine_settings == settings
    assert policy.has_offload is ("+offload" in suffixes)
    assert policy.is_infinite is ("@infinite" in suffixes)
    if settings is not None:
        read_settings(policy.settings, policy=policy.scheduling_policy)


def test_settings_have_one_spelling_and_go_into_the_server_s_flags() -> None:
    """The name of a policy does not depend on spaces or order in its settings."""
    policy = server_policy('continuum{"max_ttl_s": 5, "max_jobs": 10}+offload')
    assert policy == server_policy('continuum{"max_jobs":10,"max_ttl_s":5}+offload')
    assert policy.name == 'continuum{"max_jobs":10,"max_ttl_s":5}+offload'
    given = {"max_ttl_s": 5, "max_jobs": 10}
    assert policy.flags() == ["--additional-config", json.dumps({"agentkv": given})]
    assert server_policy("fcfs{}").name == "fcfs"


@pytest.mark.parametrize(
    "name",
    [
        *("", "lifo", "priority", "fcfs:paper", "fcfs@infinite+offload", "fcfs@", "FCFS"),
        *("fcfs@lossless", "fcfs+offload@lossless", "fcfs@infinite@lossless"),
    ],
)
def test_unknown_names_list_the_known_ones(name: str) -> None:
    """An unknown name is refused with the known ones; the simulator does not play `priority`."""
    with pytest.raises(InputError, match=r"allowed are fcfs, continuum, .*continuum:released"):
        simulated_policy(name)
    if name != "priority":
        with pytest.raises(InputError, match=r"allowed are fcfs, .*continuum:released"):
            server_policy(name)


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
        server_policy(name)
    assert message in str(caught.value)


INFO = {"policy": "continuum", "settings": {"rules": "paper", "ttl": "paper"}}


@pytest.mark.parametrize(
    ("name", "info", "problem"),
    [
        ("fcfs", None, None),
        ("continuum", INFO, None),
        ("continuum:paper", INFO, None),
        ("continuum", None, "the server runs none of agentkv's policies"),
        ("fcfs", INFO, "the server runs 'continuum'"),
        ("continuum:released", INFO, "rules = 'released'"),
    ],
)
def test_the_server_must_run_what_is_named(
    name: str, info: dict[str, Any] | None, problem: str | None
) -> None:
    """Without the routes only stock policies pass; with them the one that runs, as it is set."""
    with nullcontext() if problem is None else pytest.raises(InputError, match=problem):
        server_policy(name).check_server(info)
