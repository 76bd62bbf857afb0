"""A policy is found by its name, its entry point, its module or its file."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from agentkv.errors import InputError
from agentkv.named_classes import absolute_name, label_of
from agentkv.policies import Policy, Settings, load_policy, policy_names
from agentkv.policies.names import (
    SHIPPED,
    is_policy_name,
    make_policy,
    server_policy,
    simulated_policy,
)

SOURCE = """
from agentkv.policies import TTL, Policy, Settings

class MineSettings(Settings):
    hold_s: float = 5.0

class Mine(Policy):
    settings_class = MineSettings

    def undecided_ttl(self, cost):
        return TTL(self.settings.hold_s, "mine")
"""


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_a_class_in_a_file_is_a_policy_with_settings_of_its_own(policy_file: Path) -> None:
    """FILE.py:CLASS leads to the class, whose settings have its own fields and ours."""
    name = f"{policy_file}:Mine"
    kind = load_policy(name)
    assert (kind.__name__, label_of(name), is_policy_name(name)) == ("Mine", "Mine", True)
    settings = kind.settings_class(policy=name, hold_s=7.0, max_ttl_s=60.0)
    made = make_policy(settings, 1000)
    assert made.undecided_ttl(None).seconds == 7.0  # type: ignore[arg-type]


def test_a_file_is_found_from_another_folder(
    policy_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name that travels to the engine's process has the file's whole path."""
    monkeypatch.chdir(policy_file.parent)
    assert absolute_name("./mine.py:Mine") == f"{policy_file}:Mine"


def test_a_shipped_policy_has_a_name_and_a_class_in_a_module() -> None:
    """Shipped names come first; MODULE:CLASS leads to the same class."""
    assert policy_names()[: len(SHIPPED)] == list(SHIPPED)
    assert load_policy("agentkv.policies.agentkv:AgentKVPolicy") is SHIPPED["agentkv"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fastest", r"got 'fastest', allowed are continuum, .*FILE.py:CLASS"),
        ("no.such.module:Mine", r"got 'no.such.module:Mine': ModuleNotFoundError"),
        ("agentkv.policies.agentkv:Mine", r"Mine is not a subclass of agentkv.policies.Policy"),
        ("./missing.py:Mine", r"missing.py: no such file"),
    ],
)
def test_a_name_that_leads_to_no_policy_is_refused(name: str, message: str) -> None:
    """The error names what was asked for and what is allowed, or what went wrong."""
    with pytest.raises(InputError, match=message):
        load_policy(name)


def test_a_policy_that_overrides_nothing_is_stock() -> None:
    """The base class can be made, holds nothing and never makes anybody wait."""
    made = Policy(Settings(), 1000)
    assert made.undecided_ttl(None).seconds == 0.0  # type: ignore[arg-type]
    assert (made.has_admission_control, made.has_gate, made.sorts_running()) == (False,) * 3


# What commands take

RULES = {"policy": "continuum", "rules": "released", "ttl": "fixed", "fixed_ttl_s": 2.0}


@pytest.mark.parametrize(
    ("text", "settings", "name"),
    [
        ("fcfs{}", None, "fcfs"),
        ("continuum:paper", {"policy": "continuum", "rules": "paper", "ttl": "paper"}, None),
        ("continuum:released", RULES, None),
        ("context_serve+offload@infinite", {"policy": "context_serve"}, None),
        (
            'continuum:released{ "max_jobs": 9,"fixed_ttl_s": 0.5}+offload',
            {**RULES, "fixed_ttl_s": 0.5, "max_jobs": 9},
            'continuum:released{"fixed_ttl_s":0.5,"max_jobs":9}+offload',
        ),
    ],
)
def test_a_name_stands_for_settings_and_what_it_runs_on(
    text: str, settings: dict[str, Any] | None, name: str | None
) -> None:
    """Settings behind it are laid over its own and spelled in one way; a tier and an unlimited
    pool go with any; a server's flags have the settings."""
    policy = simulated_policy(text)
    assert (policy.engine_settings, policy.name) == (settings, name or text)
    assert (policy.has_offload, policy.is_infinite) == ("+offload" in text, "@infinite" in text)
    assert simulated_policy(policy.name) == policy
    if not policy.is_infinite:
        assert server_policy(text) == policy
    config = {"agentkv": {key: value for key, value in (settings or {}).items() if key != "policy"}}
    assert policy.flags() == (
        ["--additional-config", json.dumps(config)] if policy.settings else []
    )


@pytest.mark.parametrize(
    "name",
    [
        *("", "lifo", "priority", "fcfs:paper", "fcfs@infinite+offload", "fcfs@", "FCFS"),
        *("fcfs@lossless", "fcfs+offload@lossless", "fcfs@infinite@lossless"),
    ],
)
def test_unknown_names_list_the_known_ones(name: str) -> None:
    """Only a server takes `priority`, and only the simulator an unlimited pool."""
    near = r"did you mean fcfs\?|"
    with pytest.raises(InputError, match=rf"{near}allowed are fcfs, continuum, .*:released"):
        simulated_policy(name)
    if name != "priority":
        with pytest.raises(InputError, match=rf"{near}allowed are fcfs, priority, .*:released"):
            server_policy(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ('continuum{"max_ttl_s": -1}', "'max_ttl_s': Input should be greater than 0, got -1"),
        ('continuum{"no_such": 1}', "unknown key: got 'no_such', allowed are "),
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


PAPER = {"policy": "continuum", "settings": {"rules": "paper", "ttl": "paper"}}


@pytest.mark.parametrize(
    ("name", "info", "problem"),
    [
        *(("fcfs", None, None), ("continuum", PAPER, None), ("continuum:paper", PAPER, None)),
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
