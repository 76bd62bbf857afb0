"""A turn in an engine: its request, its progress, and the names of its blocks.

Made by the agents, read by routers, kept up to date by the engine. Knows nothing of vLLM.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..workload.plans import Prefix

_pack_block_name = struct.Struct(">III").pack


class ContextHashes:
    """Block hashes of one job's context, named by job and position instead of by content.

    A context grows, or is cut back to its start first, and jobs have no tokens in common but those
    of a prefix; so job (or prefix), cut and position identify a block as well as a hash of its
    tokens would, at no cost.
    """

    def __init__(self, job_number: int, block_tokens: int, prefixes: Iterable[Prefix] = ()) -> None:
        self._job_number = job_number
        self._block_tokens = block_tokens
        self._num_cuts = 0
        self._names: list[bytes] = []
        for prefix in prefixes:
            # longer than a job's own names, so never equal to one
            name = f"prefix {prefix.name} ".encode()
            for index in range(len(self._names), prefix.num_tokens // block_tokens):
                self._names.append(name + _pack_block_name(0, 0, index))

    def cut(self, kept_tokens: int) -> None:
        """Keep the first tokens of the context: what is behind them will be other text."""
        del self._names[kept_tokens // self._block_tokens :]
        self._num_cuts += 1

    def up_to(self, num_tokens: int, *, skip: int = 0) -> list[bytes]:
        """Names of the full blocks of `num_tokens` tokens, without the first `skip`."""
        num_blocks = num_tokens // self._block_tokens
        for index in range(len(self._names), num_blocks):
            self._names.append(_pack_block_name(self._job_number, self._num_cuts, index))
        return self._names[skip:num_blocks]

    def new_hashes(self, request: Any) -> list[bytes]:
        """Names of a request's new full blocks: vLLM asks whenever it has gained tokens."""
        num_hashed = len(request.block_hashes)
        if request.num_tokens < (num_hashed + 1) * self._block_tokens:
            return []
        return self.up_to(request.num_tokens, skip=num_hashed)


@dataclass(slots=True)
class LiveTurn:
    """A request in the engine and its progress; times in seconds on the run's clock.

    The whole reply consists of `reply_token`, a number that stands for its text. `owner` is opaque
    to the engine.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    reply_token: int
    hashes: ContextHashes
    known_tokens: int
    """Tokens of the context that were computed before: the hits of a perfect cache."""
    tags: dict[str, Any] | None = None
    owner: Any = None
    num_generated: int = 0
    computed_tokens: int = 0
    is_admitted: bool = False
    cached_tokens: int = 0
    first_token_s: float | None = None
    ended_s: float | None = None
    request: Any = field(default=None, repr=False)

    @property
    def is_prefilling(self) -> bool:
        """True while more than the last token of the context is left to compute."""
        return self.computed_tokens + 1 < self.prompt_tokens + self.num_generated

    @property
    def num_left(self) -> int:
        """Tokens left to generate."""
        return self.output_tokens - self.num_generated
