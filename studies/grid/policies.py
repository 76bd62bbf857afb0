"""The policies of a study: those of `agentkv simulate`, with three additions.

`NAME@untagged`: clients send no tags, tool events or releases. `NAME@unread`: nor can a tool call
be read in any reply. `NAME@lossless`: the pool as it is, with an endless tier whose loads take no
time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentkv.errors import InputError
from agentkv.evals.simulator.machine import DEFAULT_DRAM_GIB, Machine
from agentkv.evals.workload.plans import JobPlan, Workload
from agentkv.policies.names import PolicyChoice, simulated_policy

LOSSLESS, UNTAGGED, UNREAD = "@lossless", "@untagged", "@unread"
_NO_TIME_BYTES_S, _ENDLESS_GIB = 1e18, 1e12


@dataclass(frozen=True, slots=True)
class GridPolicy:
    """A policy of the grid, as it is played."""

    choice: PolicyChoice
    has_tags: bool = True
    has_calls: bool = True
    is_lossless: bool = False

    def played(self, workload: Workload) -> Workload:
        """The workload as clients play it: with no command in a reply if none can be read."""
        jobs = workload.jobs if self.has_calls else tuple(map(_without_commands, workload.jobs))
        return replace(workload, jobs=jobs)

    def tier(self, machine: Machine, dram_gib: float | None) -> tuple[Machine, float]:
        """The machine, and the GiB of its tier, with which this policy is played."""
        if self.is_lossless:
            return replace(machine, pcie_bytes_s=_NO_TIME_BYTES_S), _ENDLESS_GIB
        return machine, dram_gib or DEFAULT_DRAM_GIB


def parse_grid_policy(text: str, *, has_tier: bool = False) -> GridPolicy:
    """The policy of a name, with a tier if the regime has one. Raises InputError."""
    name, is_lossless = text.removesuffix(LOSSLESS), text.endswith(LOSSLESS)
    name, has_calls = name.removesuffix(UNREAD), not name.endswith(UNREAD)
    name, has_tags = name.removesuffix(UNTAGGED), has_calls and not name.endswith(UNTAGGED)
    choice = simulated_policy(name)
    if is_lossless and (choice.has_offload or choice.is_infinite):
        raise InputError(f"policies: got {text!r}, {LOSSLESS} stands alone")
    has_offload = choice.has_offload or is_lossless or has_tier
    choice = replace(choice, has_offload=has_offload)
    return GridPolicy(choice, has_tags, has_calls, is_lossless)


def _without_commands(job: JobPlan) -> JobPlan:
    turns = (
        replace(turn, command="", children=tuple(map(_without_commands, turn.children)))
        for turn in job.turns
    )
    return replace(job, turns=tuple(turns))
