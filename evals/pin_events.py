"""Says in words what a server did with a turn's blocks, from the readings around the turn.

Pure. On a server with the plugin its own counters are the source, else the usage alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from .server_metrics import BlockPool, Snapshot

_ENDS = {
    "returned": "took over its pin",
    "expired": "the TTL ran out",
    "pressure": "the pin yielded to other requests",
    "last_step": "freed at the last step",
    "released": "released",
    "aborted": "aborted",
    "reset": "the prefix cache was reset",
}


def what_happened(
    before: Snapshot, after: Snapshot, gap_end: Snapshot, pool: BlockPool, *, is_last_step: bool
) -> str:
    """One line on a turn, from readings before it, after it and at the end of its gap."""
    if after.pinned_blocks is None:
        return _from_usage(after.held_blocks(pool), is_last_step)
    events = _ends_between(before, after)
    if after.num_pins > before.num_pins:
        events.append(f"pinned {after.pinned_blocks} blocks")
    elif is_last_step:
        events.append("freed: last step")
    else:
        events.append("not pinned")
    events += _ends_between(after, gap_end)
    return "; ".join(dict.fromkeys(events))


def _from_usage(held_blocks: int, is_last_step: bool) -> str:
    if held_blocks:
        return f"{held_blocks} blocks held"
    return "freed: last step" if is_last_step else "freed at once"


def _ends_between(earlier: Snapshot, later: Snapshot) -> list[str]:
    reasons: Mapping[str, int] = later.pin_ends
    return [
        _ENDS.get(reason, reason)
        for reason, num_ends in reasons.items()
        if num_ends > earlier.pin_ends.get(reason, 0)
    ]
