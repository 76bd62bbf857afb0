"""What a run added to its server's totals, over the sessions that it was made in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TOTAL = "_total"


def added_totals(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Any:
    """The plugin's totals afterwards less those before, by name; None where it told none.

    A total that has fallen is of a server that was started again, and counts from there.
    """
    if after is None:
        return None
    earlier = before or {}
    totals = {name: value for name, value in after.items() if name.endswith(_TOTAL)}
    added = {name: _combined(value, earlier.get(name), -1) for name, value in totals.items()}
    return totals if any(map(_has_fallen, added.values())) else added


def summed_totals(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> Any:
    """Both together; None if neither is known."""
    if first is None or second is None:
        return first if second is None else second
    names = dict.fromkeys([*first, *second])
    return {name: _combined(first.get(name, 0), second.get(name), 1) for name in names}


def _has_fallen(added: Any) -> bool:
    return min(added.values(), default=0) < 0 if isinstance(added, Mapping) else added < 0


def _combined(value: Any, other: Any, sign: int) -> Any:
    """Numbers, or numbers by label."""
    if isinstance(value, Mapping) or isinstance(other, Mapping):
        mine, theirs = value or {}, other or {}
        names = dict.fromkeys([*mine, *theirs])
        return {name: _combined(mine.get(name, 0), theirs.get(name), sign) for name in names}
    return value + sign * (other or 0)
