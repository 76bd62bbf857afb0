"""One turn while the engine has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .context_hashes import ContextHashes


@dataclass(slots=True)
class LiveTurn:
    """A request and what became of it so far; times in seconds on the run's clock.

    `reply_token` is the token that the whole reply is made of: a number that stands for its text.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    reply_token: int
    hashes: ContextHashes
    known_tokens: int
    """Tokens of the context whose KV was computed at some time: what a perfect cache would have."""
    tags: dict[str, Any] | None = None
    owner: Any = None
    """Whose turn it is; opaque to the engine."""
    num_generated: int = 0
    computed_tokens: int = 0
    is_admitted: bool = False
    cached_tokens: int = 0
    first_token_s: float | None = None
    ended_s: float | None = None
    request: Any = field(default=None, repr=False)

    @property
    def is_prefilling(self) -> bool:
        """Whether more than the last token of its context is still to be computed."""
        return self.computed_tokens + 1 < self.prompt_tokens + self.num_generated

    @property
    def num_left(self) -> int:
        """Tokens still to be generated."""
        return self.output_tokens - self.num_generated
