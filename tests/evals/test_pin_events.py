"""Facts about how a turn's fate is put in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentkv.evals.pin_events import what_happened
from agentkv.evals.server_metrics import BlockPool, Snapshot

POOL = BlockPool(block_size=32, num_blocks=100)
IDLE = Snapshot({"0": 0.0}, 0, 0, 0, pinned_blocks=0, num_pins=0, pin_ends={"returned": 0})
PINNED = replace(IDLE, usage_by_engine={"0": 0.05}, pinned_blocks=5, num_pins=1)
GROWN = replace(PINNED, pinned_blocks=9, num_pins=2, pin_ends={"returned": 1})
EXPIRED = replace(GROWN, pinned_blocks=0, pin_ends={"returned": 1, "expired": 1})
OVER = replace(PINNED, pinned_blocks=0, pin_ends={"returned": 1})
STOCK = replace(IDLE, pinned_blocks=None, pin_ends={})
STOCK_HOLDING = replace(STOCK, usage_by_engine={"0": 0.05})


@pytest.mark.parametrize(
    ("before", "after", "gap_end", "is_last_step", "words"),
    [
        (IDLE, PINNED, PINNED, False, "pinned 5 blocks"),
        (PINNED, GROWN, GROWN, False, "took over its pin; pinned 9 blocks"),
        (PINNED, GROWN, EXPIRED, False, "took over its pin; pinned 9 blocks; the TTL ran out"),
        (PINNED, OVER, OVER, True, "took over its pin; freed: last step"),
        (IDLE, IDLE, IDLE, False, "not pinned"),
        (STOCK, STOCK, STOCK, False, "freed at once"),
        (STOCK, STOCK, STOCK, True, "freed: last step"),
        (STOCK, STOCK_HOLDING, STOCK, False, "5 blocks held"),
    ],
)
def test_what_happened(
    before: Snapshot, after: Snapshot, gap_end: Snapshot, is_last_step: bool, words: str
) -> None:
    """The server's counters tell the story, or the usage where there are none."""
    assert what_happened(before, after, gap_end, POOL, is_last_step=is_last_step) == words
