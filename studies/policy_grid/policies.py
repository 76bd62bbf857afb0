"""The policies of a study: those of `agentkv simulate`, without one of their rules, or idealized.

`ideal:*` plays nothing (ideals.py). `@lossless` runs a policy on the pool as it is, with an endless
tier whose loads take no time. `agentkv{"without": ["order"]}` leaves rules of ablation.py out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from agentkv.errors import InputError
from agentkv.evals.simulator.machine import Machine
from agentkv.policies.names import PolicyChoice, simulated_policy

from .ablation import ABLATIONS

IDEALS = IN_ORDER, ANY_ORDER = "ideal:in-order", "ideal:any-order"
"""The jobs one after the other as they arrive, a yardstick; and a bound on each figure by itself,
which no policy can beat."""
LOSSLESS = "@lossless"
_NO_TIME_BYTES_S, _ENDLESS_GIB = 1e18, 1e12


@dataclass(frozen=True, slots=True)
class GridPolicy:
    """A policy of the grid; `choice` is None for an ideal."""

    name: str
    choice: PolicyChoice | None = None
    without: tuple[str, ...] = ()

    def tier(self, machine: Machine, dram_gib: float) -> tuple[Machine, float]:
        """The machine and the GiB of DRAM with which this policy is played."""
        if self.name.endswith(LOSSLESS):
            return replace(machine, pcie_bytes_s=_NO_TIME_BYTES_S), _ENDLESS_GIB
        return machine, dram_gib

    def policy_class(self) -> type | None:
        """The class of the `agentkv` policy without its left-out rules; None with all of them."""
        if not self.without:
            return None
        return type("Ablated", tuple(ABLATIONS[name] for name in self.without), {})


def parse_grid_policy(text: str) -> GridPolicy:
    """The policy of a name, spelled in one way; raises InputError for an unknown one."""
    if text in IDEALS:
        return GridPolicy(text)
    if text.startswith("ideal:"):
        raise InputError(f"--policy: got {text!r}, ideals are {' and '.join(IDEALS)}")
    name = text.removesuffix(LOSSLESS)
    name, without = _left_out(text, name)
    choice = simulated_policy(name)
    spelled = choice.name
    if without:
        settings = json.loads(spelled[len("agentkv") :] or "{}") | {"without": list(without)}
        spelled = "agentkv" + json.dumps(settings, sort_keys=True, separators=(",", ":"))
    if text.endswith(LOSSLESS):
        if choice.has_offload or choice.is_infinite:
            raise InputError(f"--policy: got {text!r}, {LOSSLESS} stands alone")
        choice, spelled = replace(choice, has_offload=True), spelled + LOSSLESS
    return GridPolicy(spelled, replace(choice, name=spelled), without)


def _left_out(text: str, name: str) -> tuple[str, tuple[str, ...]]:
    """The name without the setting "without", and the rules that this names."""
    if not name.startswith("agentkv{"):
        return name, ()
    try:
        settings: dict[str, Any] = json.loads(name.removeprefix("agentkv"))
        without = tuple(settings.pop("without", ()))
    except (TypeError, ValueError):
        return name, ()  # the reader says what is wrong
    unknown = [rule for rule in without if rule not in ABLATIONS]
    if unknown:
        raise InputError(f"--policy: got {text!r}, rules to leave out are {', '.join(ABLATIONS)}")
    return ("agentkv" + json.dumps(settings) if without else name), without
