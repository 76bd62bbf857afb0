"""Policies by the names that `--policy` takes: NAME[:RULES][+offload][@infinite]."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ..load.server_policies import policy_names, server_policy
from .errors import SimulationError

NOT_SIMULATED = ("priority",)
"""Policies of the server that order by a field which no workload has."""
_NAME = re.compile(r"(?P<policy>[a-z0-9_:-]+)(?P<offload>\+offload)?(?P<infinite>@infinite)?")


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """One policy to run; `settings` are what `--additional-config` would hold, None for stock."""

    name: str
    settings: dict[str, Any] | None = field(hash=False)
    has_offload: bool = False
    is_infinite: bool = False


def parse_policy(name: str) -> PolicyChoice:
    """The policy of a name; raises SimulationError for one that is not known."""
    allowed = [known for known in policy_names() if known not in NOT_SIMULATED]
    match = _NAME.fullmatch(name)
    if match is None or match["policy"] not in allowed:
        raise SimulationError(
            f"--policy: got {name!r}, allowed are {', '.join(allowed)}, each also with "
            "+offload (a DRAM tier) and @infinite (an unlimited pool), in that order"
        )
    policy = server_policy(match["policy"])
    settings = None if policy.is_stock else {"policy": policy.scheduling_policy, **policy.settings}
    return PolicyChoice(name, settings, match["offload"] is not None, match["infinite"] is not None)
