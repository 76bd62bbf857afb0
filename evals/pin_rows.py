"""What one run of the pin experiment saw: a row per turn, the TTL trial, and where it ran.

Plain values and the arithmetic on them; how they were measured is `pin_experiment`'s business.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil
from typing import Any


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call as the server reported them."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int

    def blocks_touched(self, block_size: int) -> int:
        """ceil(tokens / block size): what the reference experiment expected to stay."""
        return ceil((self.prompt_tokens + self.output_tokens) / block_size)

    def blocks_full(self, block_size: int) -> int:
        """Blocks that can stay pinned.

        Only full blocks have a hash by which the next turn finds them, and the last token sampled
        has no KV yet: it would be computed by the next step.
        """
        return (self.prompt_tokens + self.output_tokens - 1) // block_size


@dataclass(frozen=True, slots=True)
class TurnRow:
    """One turn: blocks in use before it, after it, and at each reading of the gap that follows."""

    turn: int
    user_prompt: str
    reply: str
    usage: Usage
    latency_s: float
    blocks_before: int
    blocks_after: int
    gap_blocks: tuple[int, ...]
    is_last_step: bool
    happened: str

    @property
    def change_in_gap_blocks(self) -> int:
        """The reading of the gap that is farthest from the one after the turn, as a difference."""
        changes = [blocks - self.blocks_after for blocks in self.gap_blocks]
        return max(changes, key=abs, default=0)


@dataclass(frozen=True, slots=True)
class TTLTrial:
    """A second job, left alone after its first turn until its pin runs out.

    `ttl_s` is what the server said was left right after the turn, None if it did not say;
    `held_s` is when the blocks were seen free, None if they were not within `waited_s`.
    """

    blocks_before: int
    blocks_after: int
    blocks_at_end: int
    ttl_s: float | None
    held_s: float | None
    waited_s: float


@dataclass(frozen=True, slots=True)
class PinRun:
    """A whole run. `policy` is None on a server without the agentkv routes."""

    base_url: str
    model: str
    policy: str | None
    block_size: int
    num_blocks: int
    gap_s: float
    blocks_at_start: int
    turns: tuple[TurnRow, ...]
    ttl_trial: TTLTrial
    num_foreign_requests: int

    def as_dict(self) -> dict[str, Any]:
        """Everything measured, ready for JSON, with the blocks expected of each turn."""
        turns = [
            asdict(row)
            | {
                "blocks_touched": row.usage.blocks_touched(self.block_size),
                "blocks_full": row.usage.blocks_full(self.block_size),
                "change_in_gap_blocks": row.change_in_gap_blocks,
            }
            for row in self.turns
        ]
        return asdict(self) | {"turns": turns}
