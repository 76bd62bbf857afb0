"""One measured run of a command: what the offline models learn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Bound = Literal["exact", "lower", "upper"]


@dataclass(frozen=True, slots=True)
class Observation:
    """A command and how long it ran, in seconds.

    `bound` says what the number is: exact; "lower", it ran at least so long (cut by a time-out);
    "upper", it ran at most so long (the measured time includes a wait for something else).
    """

    command: str
    duration_s: float
    bound: Bound = "exact"
