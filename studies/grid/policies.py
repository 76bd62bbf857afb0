"""The policies of a study: those of `agentkv simulate`, and these without one of their parts.

`NAME@untagged`: clients send no tags, tool events or releases. `NAME@lossless`: the pool as it is,
with an endless tier whose loads take no time. `agentkv{"without": ["order"]}` leaves parts of
ablation.py out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from agentkv.errors import InputError
from agentkv.evals.simulator.machine import DEFAULT_DRAM_GIB, Machine
from agentkv.policies.names import PolicyChoice, simulated_policy

from .ablation import ABLATIONS, ablated

LOSSLESS, UNTAGGED = "@lossless", "@untagged"
_NO_TIME_BYTES_S, _ENDLESS_GIB = 1e18, 1e12


@dataclass(frozen=True, slots=True)
class GridPolicy:
    """A policy of the grid, as it is played."""

    choice: PolicyChoice
    without: tuple[str, ...] = ()
    has_tags: bool = True
    is_lossless: bool = False

    def tier(self, machine: Machine, dram_gib: float | None) -> tuple[Machine, float]:
        """The machine, and the GiB of its tier, with which this policy is played."""
        if self.is_lossless:
            return replace(machine, pcie_bytes_s=_NO_TIME_BYTES_S), _ENDLESS_GIB
        return machine, dram_gib or DEFAULT_DRAM_GIB

    @property
    def policy_class(self) -> type | None:
        """The class of the `agentkv` policy without its left-out parts; None with all of them."""
        return ablated(self.without) if self.without else None


def parse_grid_policy(text: str, *, has_tier: bool = False) -> GridPolicy:
    """The policy of a name, with a tier if the regime has one. Raises InputError."""
    name, is_lossless = text.removesuffix(LOSSLESS), text.endswith(LOSSLESS)
    name, has_tags = name.removesuffix(UNTAGGED), not name.endswith(UNTAGGED)
    name, without = _left_out(text, name)
    choice = simulated_policy(name)
    if is_lossless and (choice.has_offload or choice.is_infinite):
        raise InputError(f"policies: got {text!r}, {LOSSLESS} stands alone")
    has_offload = choice.has_offload or is_lossless or has_tier
    return GridPolicy(replace(choice, has_offload=has_offload), without, has_tags, is_lossless)


def _left_out(text: str, name: str) -> tuple[str, tuple[str, ...]]:
    """The name without the setting "without", and the parts that this names."""
    if not name.startswith("agentkv{"):
        return name, ()
    try:
        settings: dict[str, Any] = json.loads(name.removeprefix("agentkv"))
        without = tuple(settings.pop("without", ()))
    except (TypeError, ValueError):
        return name, ()  # simulated_policy says what is wrong
    unknown = [part for part in without if part not in ABLATIONS]
    if unknown:
        raise InputError(f"policies: got {text!r}, parts to leave out are {', '.join(ABLATIONS)}")
    return ("agentkv" + json.dumps(settings) if without else name), without
