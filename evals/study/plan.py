"""A study as it was asked for: its grid, its jobs, its machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..simulation.machine import Machine
from .capacity import Capacity
from .jobs import JobSource
from .loads import Load
from .units import Unit


@dataclass(frozen=True, slots=True)
class Grid:
    """What is combined with what."""

    pools_blocks: tuple[int, ...]
    loads: tuple[Load, ...]
    tools: tuple[str, ...]
    seeds: tuple[int, ...]
    policies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """Everything a worker needs; `machines` by pool, `capacities` by tools and pool.

    `config` is what all rows of a study have in common.
    """

    grid: Grid
    source: JobSource
    machines: Mapping[int, Machine]
    capacities: Mapping[tuple[str, int], Capacity]
    dram_gib: float
    config: Mapping[str, Any]
    metadata: Mapping[str, Any]

    def units(self) -> list[Unit]:
        """A whole grid for the first seed, then for the next; policies of a regime together."""
        grid = self.grid
        return [
            Unit(tools, pool, load, self._jps(tools, pool, load), seed, policy)
            for seed in grid.seeds
            for tools in grid.tools
            for pool in grid.pools_blocks
            for load in grid.loads
            for policy in grid.policies
        ]

    def _jps(self, tools: str, pool_blocks: int, load: Load) -> float | None:
        if load.multiple is None:
            return None
        return load.multiple * self.capacities[tools, pool_blocks].one_x_jps


@dataclass(frozen=True, slots=True)
class Output:
    """Where a study goes, and how it is worked through.

    `again` names policies whose units are played anew even where their rows are there.
    """

    out: Path
    has_resume: bool
    has_force: bool
    again: tuple[str, ...]
    num_workers: int
    unit_limit_s: float
