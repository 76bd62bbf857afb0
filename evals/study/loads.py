"""The loads of a study: open loops and bursts as multiples of 1x, closed loops by their size."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ..simulation.errors import SimulationError

MULTIPLES = {"light": 0.1, "1x": 1.0, "2x": 2.0, "overload": 4.0, "burst": 1.0}
"""What the names stand for where no multiple is given. At 0.1 stock neither preempted nor
recomputed anything, at 0.2 it did on a pool of 3,000 blocks (docs/simulator.md)."""
DEFAULT_LOADS = ("light", "1x", "2x", "overload", "closed-32", "closed-64", "burst")
_CLOSED = re.compile(r"closed-([1-9][0-9]*)")
_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True)
class Load:
    """Jobs that arrive at `multiple` times 1x, or `concurrency` at once, each followed by the next.

    `arrivals` is how those of an open loop come: "poisson", or "burst", eight at once.
    """

    name: str
    multiple: float | None = None
    concurrency: int | None = None

    @property
    def arrivals(self) -> Literal["poisson", "burst"]:
        return "burst" if self.name.startswith("burst") else "poisson"


def parse_load(text: str) -> Load:
    """NAME=MULTIPLE, closed-N, or a name of MULTIPLES; SimulationError for anything else.

    A name that starts with "burst" is one of bursts.
    """
    name, has_multiple, given = text.partition("=")
    closed = _CLOSED.fullmatch(text)
    if closed is not None:
        return Load(name, concurrency=int(closed[1]))
    try:
        multiple = float(given) if has_multiple else MULTIPLES[name]
    except (KeyError, ValueError):
        multiple = 0.0
    if _NAME.fullmatch(name) is None or name.startswith("closed") or not 0.0 < multiple < 1e6:
        raise SimulationError(
            f"--loads: got {text!r}, allowed are {', '.join(MULTIPLES)}, NAME=MULTIPLE such as "
            "3x=3 or burst-2x=2 (a number above 0), and closed-N"
        )
    return Load(name, multiple)
