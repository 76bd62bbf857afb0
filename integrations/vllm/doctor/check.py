"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["OK", "WARN", "FAIL"]


@dataclass(frozen=True, slots=True)
class Check:
    """One checked thing, what was seen, and advice, or None if there is nothing to do."""

    name: str
    status: Status
    seen: str
    advice: str | None = None


def ok(name: str, seen: str) -> Check:
    """Report something that is in order."""
    return Check(name, "OK", seen)


def warn(name: str, seen: str, advice: str) -> Check:
    """Report something that works less well than it could, or fails in some uses."""
    return Check(name, "WARN", seen, advice)


def fail(name: str, seen: str, advice: str) -> Check:
    """Report something that keeps the plugin from working."""
    return Check(name, "FAIL", seen, advice)
