"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["OK", "WARN", "FAIL"]


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, what was seen, and what to do about it (None if nothing)."""

    name: str
    status: Status
    seen: str
    advice: str | None = None


def ok(name: str, seen: str) -> Check:
    """Nothing to do."""
    return Check(name, "OK", seen)


def warn(name: str, seen: str, advice: str) -> Check:
    """Something works less well than it could, or will fail in some uses."""
    return Check(name, "WARN", seen, advice)


def fail(name: str, seen: str, advice: str) -> Check:
    """The plugin cannot do its work."""
    return Check(name, "FAIL", seen, advice)
