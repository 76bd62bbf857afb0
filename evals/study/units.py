"""A study's units of work: one policy in one regime with one seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .loads import Load


@dataclass(frozen=True, slots=True)
class Unit:
    """One simulation. `jps` is the rate that the load comes to, None in a closed loop."""

    tools: str
    pool_blocks: int
    load: Load
    jps: float | None
    seed: int
    policy: str

    def facts(self) -> dict[str, Any]:
        """The unit as its row carries it."""
        return {
            "tools": self.tools_name,
            "pool_blocks": self.pool_blocks,
            "load": self.load.name,
            "multiple": self.load.multiple,
            "jps": self.jps,
            "concurrency": self.load.concurrency,
            "arrivals": None if self.load.concurrency else self.load.arrivals,
            "seed": self.seed,
            "policy": self.policy,
        }

    @property
    def tools_name(self) -> str:
        """Without the folder of a file."""
        return Path(self.tools).name

    def __str__(self) -> str:
        place = f"{self.tools_name}, {self.pool_blocks} blocks, {self.load.name}"
        return f"{place}, seed {self.seed}, {self.policy}"


def unit_key(unit: Unit, config: Mapping[str, Any]) -> str:
    """What tells two units apart: all that decides their result, but for the code."""
    text = json.dumps({"config": config, **unit.facts()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
