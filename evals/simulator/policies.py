"""Policies by the names that `--policy` takes: NAME[:RULES][SETTINGS][+offload][@infinite].

SETTINGS is a JSON object of the plugin's settings, laid over those that the name stands for. Called
by the commands; knows nothing of machines or workloads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agentkv.errors import InputError
from agentkv.policies.names import SHIPPED

from ..policies import ADDITIONS, NAME, policy_names, server_policy

NOT_SIMULATED = ("priority",)
"""Policies of the server that order by a field which no workload has."""
INFINITE = "@infinite"


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
    on_server = name.removesuffix(INFINITE)
    match = NAME.fullmatch(on_server)
    if match is None or match["rules"] in NOT_SIMULATED or not _may_be_policy(match["rules"]):
        allowed = [known for known in policy_names() if known not in NOT_SIMULATED]
        raise InputError(
            f"--policy: got {name!r}, allowed are {', '.join(allowed)}, FILE.py:CLASS and "
            f"MODULE:CLASS, {ADDITIONS}; then {INFINITE} (an unlimited pool)"
        )
    policy = server_policy(on_server)
    settings = {"policy": policy.scheduling_policy, **policy.settings}
    return PolicyChoice(
        policy.name + name[len(on_server) :],
        None if policy.is_stock else settings,
        has_offload=policy.has_offload,
        is_infinite=on_server != name,
    )


def _may_be_policy(name: str) -> bool:
    known = policy_names()
    return name in known or (":" in name and name.partition(":")[0] not in {*known, *SHIPPED})
