"""How much of the pool a context takes, where layers differ and each kind has blocks of its own."""

from __future__ import annotations

MEMORY = 64.0
"""Requests that count, about: each one before counts by 1/64 less."""


class Footprint:
    """Blocks of a context: those that its tokens fill, times what requests that ended have had.

    Layers with full attention have a block for each of those, layers with a sliding window or a
    state only what they need. Every call is O(1).
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._num_tokens = self._num_blocks = 0.0

    def measured(self, num_tokens: int, num_blocks: int) -> None:
        """A context of so many tokens had so many blocks, of all kinds together."""
        kept = 1.0 - 1.0 / MEMORY
        self._num_tokens = kept * self._num_tokens + num_tokens
        self._num_blocks = kept * self._num_blocks + num_blocks

    @property
    def scale(self) -> float:
        """Blocks of all kinds for each block of tokens; 1 until something was measured."""
        if not self._num_tokens:
            return 1.0
        return self._num_blocks * self._block_tokens / self._num_tokens

    def blocks(self, num_tokens: int) -> float:
        """Blocks of a context."""
        return -(-num_tokens // self._block_tokens) * self.scale

    def more_blocks(self, num_tokens: float) -> float:
        """Blocks by which a context grows with so many tokens, on average."""
        return num_tokens / self._block_tokens * self.scale
