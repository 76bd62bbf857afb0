"""Turns the events of jobs into pins, and decides which request gets memory; without vLLM.

The scheduler calls `manager.RetentionManager`, which calls the scheduler as its `Host`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from agentkv.policies.jobs import Prompt
from agentkv.protocol import Tags

QueueRank = tuple[int, float, float, float]
"""A request's place among those of its client, the smallest is served first: its band, then the
policy's rank. Between clients the band decides, then the client's place."""
FIRST, IN_ORDER, LAST = -1, 0, 1
"""Bands: of the starved, and of those that are held back or above their share."""

ClientPlace = tuple[bool, float]
"""A client's place among clients: above its share of memory, and the service that it has had."""


class CacheGroup(NamedTuple):
    """Layers that share their blocks, each of `block_tokens`; where they have a sliding window or a
    state, a prefix hit takes `most_blocks` at most, and a running request one more."""

    block_tokens: int
    most_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class KVPool:
    """Describes the engine's KV cache blocks."""

    num_blocks: int
    block_tokens: int
    """Tokens of a block's hash: fewer than a block's with a `--prefix-match-unit`."""
    drops_last_block: bool = False
    """The last block of every prefix hit is recomputed."""
    groups: tuple[CacheGroup, ...] = ()
    """More than one where layers differ; none stands for one of `block_tokens`."""
    hit_tokens: int = 1
    """Tokens of which every prefix hit has a multiple."""
    has_tier: bool = False
    """A KV tier can be asked whether it has a context."""
    has_one_group: bool = field(init=False)
    """All layers share their blocks. Only then are a request's last blocks the KV of its last
    tokens, so that a pin can be trimmed."""
    dropped_tokens: int = field(init=False)
    """Tokens of every prefix hit that are computed again all the same."""

    def __post_init__(self) -> None:
        # each is asked for several times a turn
        object.__setattr__(self, "has_one_group", len(self.groups) <= 1)
        object.__setattr__(self, "dropped_tokens", self.block_tokens * self.drops_last_block)

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_tokens


class ArrivingRequest(NamedTuple):
    """Holds what a request says when it enters the engine."""

    request_id: str
    num_prompt_tokens: int
    prompt: Prompt | None
    """None if the prompt is given as embeddings."""
    tags: Tags
    client: str
    """The client's, if the API server says one."""
    priority: int
    max_tokens: int
    """Of its reply."""


class KeptBlocks(NamedTuple):
    """Blocks that a finished turn keeps, of which it alone holds `num_exclusive_blocks`; they may
    be reused once the scheduler step `fence` has been processed."""

    blocks: Sequence[Any] = ()
    num_exclusive_blocks: int = 0
    fence: int = 0


NO_BLOCKS = KeptBlocks()


class Host(Protocol):
    """Answers what retention asks of the scheduler that it serves."""

    @property
    def pool(self) -> KVPool: ...

    def clock(self) -> float:
        """Seconds on a monotonic clock that stands still while the engine is paused."""
        ...

    def monotonic(self) -> float:
        """Seconds on one that does not, for what the engine itself takes."""
        ...

    def num_free_blocks(self) -> int: ...

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of tokens, special ones included. For the background thread."""
        ...

    def running_tokens(self) -> Iterable[tuple[str, int]]:
        """Yield the running requests, each with the tokens that it has in the cache."""
        ...

    def free_blocks(self, blocks: Sequence[Any], fence: int) -> None:
        """Give blocks back, once the scheduler step `fence` has been processed."""
        ...

    def tier_key(self, block_hashes: Sequence[Any]) -> Any:
        """Return the KV tier's key of the end of a context with these blocks; None without one."""
        ...

    def rank_changed(self, job_id: str | None) -> None:
        """Give the waiting turns of this job (None: of all) their present place in the queue."""
        ...

    def wake_at(self, time_s: float) -> None:
        """Wake the engine at this time, even if it is idle then, to look for expired pins."""
        ...
