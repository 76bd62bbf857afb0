"""Block hashes that cost nothing: a job's context only ever grows, so a block is its position.

The prompt of a turn is the whole context so far and what the turn adds: block i of job j always
holds the same tokens, and no two jobs share any. Job and position are therefore as good a name as
a hash of the tokens.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

_name = struct.Struct(">II").pack


class ContextHashes:
    """The names of one job's blocks, made as far as they are asked for."""

    def __init__(self, job_number: int, block_tokens: int) -> None:
        self._job_number = job_number
        self._block_tokens = block_tokens
        self._names: list[bytes] = []

    def up_to(self, num_tokens: int, *, behind: int = 0) -> list[bytes]:
        """The names of the full blocks of so many tokens, but for the first `behind`."""
        num_blocks = num_tokens // self._block_tokens
        for index in range(len(self._names), num_blocks):
            self._names.append(_name(self._job_number, index))
        return self._names[behind:num_blocks]

    def hasher(self) -> Callable[[Any], list[bytes]]:
        """What vLLM calls whenever a request has got tokens."""
        block_tokens = self._block_tokens

        def new_hashes(request: Any) -> list[bytes]:
            num_tokens, behind = request.num_tokens, len(request.block_hashes)
            if num_tokens < (behind + 1) * block_tokens:
                return []
            return self.up_to(num_tokens, behind=behind)

        return new_hashes
