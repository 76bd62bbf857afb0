"""A policy is found by its name, its entry point, its module or its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentkv.errors import InputError
from agentkv.named_classes import absolute_name, label_of
from agentkv.policies import Policy, Settings, load_policy, policy_names
from agentkv.policies.names import SHIPPED, is_policy_name, make_policy

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


def test_a_class_in_a_module_is_a_policy() -> None:
    """MODULE:CLASS leads to the class."""
    assert load_policy("agentkv.policies.agentkv:AgentKVPolicy") is SHIPPED["agentkv"]


def test_the_shipped_names_come_first() -> None:
    """Every shipped policy is known by its name."""
    assert policy_names()[: len(SHIPPED)] == list(SHIPPED)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fastest", r"got 'fastest', allowed are continuum, .*FILE.py:CLASS"),
        ("no.such.module:Mine", r"got 'no.such.module:Mine': ModuleNotFoundError"),
        ("agentkv.policies.agentkv:Mine", r"Mine is not a subclass .* has AgentKVPolicy"),
        ("./missing.py:Mine", r"FileNotFoundError"),
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
