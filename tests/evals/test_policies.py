"""The policies that servers can run, by name."""

from __future__ import annotations

import pytest

from agentkv.errors import InputError
from agentkv.evals.policies import check_policy, server_policy
from agentkv.integrations.vllm.settings import read_settings


def test_a_wrong_name_lists_the_valid_ones() -> None:
    """The message about an unknown policy lists stock policies and ours."""
    with pytest.raises(InputError, match=r"'lifo', allowed are fcfs, .*continuum:released"):
        server_policy("lifo")


@pytest.mark.parametrize("name", ["continuum:paper", "continuum:released"])
def test_the_settings_of_a_variant_are_valid(name: str) -> None:
    """The plugin accepts the settings behind continuum:paper and continuum:released."""
    policy = server_policy(name)
    assert read_settings(policy.settings, policy=policy.scheduling_policy).rules in name
    assert "--additional-config" in policy.flags()


def test_the_server_must_run_what_is_named() -> None:
    """Without the routes only stock policies pass, with them only the one that runs."""
    check_policy(server_policy("fcfs"), None)
    check_policy(server_policy("continuum"), {"policy": "continuum", "settings": {}})
    for name, info in (("continuum", None), ("fcfs", {"policy": "continuum"})):
        with pytest.raises(InputError, match="the server runs"):
            check_policy(server_policy(name), info)


def test_the_server_must_run_the_variant_that_is_named() -> None:
    """A server with other settings than the variant needs is refused."""
    info = {"policy": "continuum", "settings": {"rules": "paper", "ttl": "paper"}}
    check_policy(server_policy("continuum:paper"), info)
    with pytest.raises(InputError, match="rules = 'released'"):
        check_policy(server_policy("continuum:released"), info)
