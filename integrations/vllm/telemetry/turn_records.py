"""What the engine remembers of the turns of each job, to say what was saved and why one missed.

Values alone; `retention.misses` makes, keeps and drops them. Blocks are known by their hashes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentkv.protocol import client_and_id

from .divergence import Difference
from .explanations import explanation
from .savings import MissReason, Savings

HASH_BYTES = 80
"""Of one block hash: 32 bytes as a Python object in a list."""
TOKEN_BYTES = 40
"""Of one token, likewise."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a turn sends; `cache_keys` are what its block hashes contain apart from tokens: LoRA and
    salt."""

    token_ids: Sequence[int]
    block_hashes: list[Any]
    cache_keys: object = None


@dataclass(slots=True)
class LetGo:
    """When and why a job's KV, or the last part of it, was held no longer."""

    why: str
    """A `PinEnd`, or the reason for which the job was closed."""
    at_s: float
    ttl_s: float | None = None
    taken_by: str | None = None
    """Key of the job whose request took it; "" for a request without a job."""


@dataclass(slots=True)
class LeftContext:
    """What a job's last finished turn left in the cache."""

    num_tokens: int
    num_prompt_tokens: int
    first_prompt_tokens: int
    finished_s: float
    cache_keys: object
    idle_blocks: int
    """Blocks that no request held just before, in the free queue or pinned."""
    allocated_blocks: int
    """Blocks that the engine had allocated until then."""
    num_blocks: int = 0
    num_exclusive_blocks: int = 0
    """The last of them, which no other request or pin holds."""
    undecided_ttl_s: float = 0.0
    block_hashes: Sequence[Any] = ()
    """Empty if they were dropped."""
    token_ids: Sequence[int] = ()
    """Of its prompt and reply; only if prompts may be shown."""
    let_go: LetGo | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of its hashes and tokens."""
        return len(self.block_hashes) * HASH_BYTES + len(self.token_ids) * TOKEN_BYTES

    def tokens_in_stock(self, allocated_blocks: int, block_tokens: int) -> int:
        """How many of its tokens stock would still have after `allocated_blocks` in all.

        Stock would have put the blocks into its free queue when the turn ended, the last one first,
        behind all that were idle then, and each allocation takes the head of the queue. Rather too
        many: blocks ahead that leave the queue by a hit are not counted, nor what stock would
        compute a second time.
        """
        passed = allocated_blocks - self.allocated_blocks - self.idle_blocks
        num_lost = max(0, min(passed, self.num_exclusive_blocks))
        if not num_lost:
            return self.num_tokens
        share = (self.num_blocks - num_lost) / self.num_blocks
        return int(self.num_tokens * share) // block_tokens * block_tokens

    def common_blocks(self, block_hashes: Sequence[Any]) -> int | None:
        """Blocks that a prompt shares with it; None if its hashes are no longer known.

        Each hash covers all blocks before it, so that a binary search finds the first difference.
        """
        known = self.block_hashes
        if not known:
            return None
        blocks = range(min(len(known), len(block_hashes)))
        return bisect_left(blocks, True, key=lambda block: known[block] != block_hashes[block])


@dataclass(slots=True)
class Miss:
    """Why a turn computed tokens again that were expected in the cache."""

    reason: MissReason
    num_tokens: int
    facts: dict[str, Any]
    taken_by: str | None = None

    def as_dict(self, viewer: str | None) -> dict[str, Any]:
        """Return it as plain data, with the sentences that explain it; `viewer` is the client that
        asks, None sees all jobs."""
        shown = {"reason": self.reason, "tokens": self.num_tokens, **self.facts}
        taker = None
        if self.taken_by is not None:
            client, own_id = client_and_id(self.taken_by)
            if not self.taken_by:
                shown["taken_by"] = taker = "a request without a job"
            elif viewer is None or client == viewer:
                shown["taken_by"], taker = own_id, f"job {own_id}"
            else:
                shown["taken_by"] = taker = "another client's job"
        why, advice = explanation(shown, taker)
        return {**shown, "why": why, "advice": advice}


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One admitted turn, and what it found of what it was expected to find."""

    turn: int
    prompt_tokens: int
    expected_tokens: int
    hit_tokens: int
    kept_tokens: int
    miss: Miss | None = None

    def as_dict(self, viewer: str | None) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "turn": self.turn,
            "prompt_tokens": self.prompt_tokens,
            "expected_tokens": self.expected_tokens,
            "hit_tokens": self.hit_tokens,
            "kept_tokens": self.kept_tokens,
            "miss": None if self.miss is None else self.miss.as_dict(viewer),
        }


@dataclass(slots=True)
class JobRecord:
    """The last turns of one job, their sums, and what the last one left."""

    savings: Savings = field(default_factory=Savings)
    turns: deque[TurnRecord] = field(default_factory=deque)
    left: LeftContext | None = None
    cache_keys: object = None
    """Of the turn that was admitted last."""

    @property
    def num_recomputed_tokens(self) -> int:
        return sum(self.savings.recomputed_tokens.values())


@dataclass(frozen=True, slots=True)
class Arrival:
    """What is known of a turn's expected hit when it arrives."""

    turn: int
    left: LeftContext | None
    expected_tokens: int = 0
    common_tokens: int = 0
    divergence: Mapping[str, Any] | None = None
    difference: Difference | None = None
    cache_keys: object = None
    tool: str | None = None
    tool_s: float | None = None
    predicted_s: float | None = None
