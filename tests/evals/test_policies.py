"""The policies that servers can run, by name."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest

from agentkv.errors import InputError
from agentkv.policies.names import read_settings, server_policy


def test_settings_behind_a_name_are_the_server_s() -> None:
    """They go into its flags, over those that the name stands for, and are spelled in one way."""
    policy = server_policy('continuum:released{"fixed_ttl_s": 0.5}+offload')
    assert policy.name == 'continuum:released{"fixed_ttl_s":0.5}+offload'
    assert policy.has_offload
    settings = {"rules": "released", "ttl": "fixed", "fixed_ttl_s": 0.5}
    assert policy.flags() == ["--additional-config", json.dumps({"agentkv": settings})]
    assert server_policy(policy.name) == policy
    with pytest.raises(InputError, match="unknown key 'no_such'"):
        server_policy('agentkv{"no_such": 1}')


def test_a_wrong_name_lists_the_valid_ones() -> None:
    """The message about an unknown policy lists stock policies and ours."""
    with pytest.raises(InputError, match=r"'lifo', allowed are fcfs, .*continuum:released"):
        server_policy("lifo")


@pytest.mark.parametrize("name", ["continuum:paper", "continuum:released"])
def test_the_settings_of_a_variant_are_valid(name: str) -> None:
    """The plugin accepts the settings behind continuum:paper and continuum:released."""
    policy = server_policy(name)
    assert (
        read_settings(policy.settings, policy=policy.scheduling_policy).model_dump()["rules"]
        in name
    )
    assert "--additional-config" in policy.flags()


PAPER = {"policy": "continuum", "settings": {"rules": "paper", "ttl": "paper"}}


@pytest.mark.parametrize(
    ("name", "info", "problem"),
    [
        ("fcfs", None, None),
        ("continuum", PAPER, None),
        ("continuum:paper", PAPER, None),
        ("continuum", None, "the server runs none of agentkv's policies"),
        ("fcfs", PAPER, "the server runs 'continuum'"),
        ("continuum:released", PAPER, "rules = 'released'"),
    ],
)
def test_the_server_must_run_what_is_named(
    name: str, info: dict[str, Any] | None, problem: str | None
) -> None:
    """Without the routes only stock policies pass; with them the one that runs, as it is set."""
    with nullcontext() if problem is None else pytest.raises(InputError, match=problem):
        server_policy(name).check_server(info)
