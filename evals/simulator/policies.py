"""Policies by the names that `--policy` takes: NAME[:RULES][SETTINGS][+offload][@infinite].

SETTINGS is a JSON object of the plugin's settings, laid over those that the name stands for. Called
by the commands; knows nothing of machines or workloads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentkv.errors import InputError, SettingsError
from agentkv.integrations.vllm.settings import read_settings
from agentkv.policies.names import SHIPPED

from ..policies import ServerPolicy, policy_names, server_policy

NOT_SIMULATED = ("priority",)
"""Policies of the server that order by a field which no workload has."""
_NAME = re.compile(
    r"(?P<policy>[^{}+@]+)(?P<settings>\{.*\})?"
    r"(?P<suffix>(?P<offload>\+offload)?(?P<infinite>@infinite)?)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """One policy to run; `settings` are those of `--additional-config`, None for stock.

    The name spells its settings in one way, however they were written.
    """

    name: str
    settings: dict[str, Any] | None = field(hash=False)
    has_offload: bool = False
    is_infinite: bool = False


def parse_policy(name: str) -> PolicyChoice:
    """The policy of a name; raises InputError for an unknown one, or wrong settings."""
    match = _NAME.fullmatch(name)
    if match is None or match["policy"] in NOT_SIMULATED or not _may_be_policy(match["policy"]):
        allowed = [known for known in policy_names() if known not in NOT_SIMULATED]
        raise InputError(
            f"--policy: got {name!r}, allowed are {', '.join(allowed)}, FILE.py:CLASS and "
            'MODULE:CLASS, each also with {"setting": value} (JSON), +offload (a DRAM tier) and '
            "@infinite (an unlimited pool), in that order"
        )
    policy = server_policy(match["policy"])
    given = _read_given(name, policy, match["settings"])
    spelled = json.dumps(given, sort_keys=True, separators=(",", ":")) if given else ""
    settings = None
    if not policy.is_stock:
        settings = {"policy": policy.scheduling_policy, **policy.settings, **given}
    return PolicyChoice(
        policy.name + spelled + match["suffix"],
        settings,
        has_offload=match["offload"] is not None,
        is_infinite=match["infinite"] is not None,
    )


def _may_be_policy(name: str) -> bool:
    known = policy_names()
    return name in known or (":" in name and name.partition(":")[0] not in {*known, *SHIPPED})


def _read_given(name: str, policy: ServerPolicy, text: str | None) -> Mapping[str, Any]:
    if text is None:
        return {}
    try:
        given: dict[str, Any] = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"--policy: got {name!r}, {text} is no JSON: {error}") from None
    if not given:
        return {}
    if policy.is_stock:
        raise InputError(f"--policy: got {name!r}, {policy.name} is vLLM's and has no settings")
    if "policy" in given:
        raise InputError(f"--policy: got {name!r}, the policy stands before the settings")
    try:
        read_settings({**policy.settings, **given}, policy=policy.scheduling_policy)
    except SettingsError as error:
        raise InputError(f"--policy: got {name!r}: {error}") from None
    return given
