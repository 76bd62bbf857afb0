"""Takes the block hashes of a prompt's beginning from an earlier request that began with it.

The engine's input thread hashes every block of every turn; blocks that stood at the same place
behind the same blocks have the same hash. Compares the token ids themselves, in chunks. Knows
vLLM's request by its fields only.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable
from itertools import count
from typing import Any, NamedTuple

CHUNK_TOKENS = 1024
MIN_PROMPT_TOKENS = 4096
BYTES_PER_HASH = 65
BYTES_PER_CHUNK = 400
"""Memory that CPython takes for a chunk in addition to its ids and hashes."""

Hasher = Callable[[Any], list[bytes]]


class _Chunk(NamedTuple):
    number: int
    hashes: list[bytes]


class ContinuedHasher:
    """Stands in for vLLM's block hasher of a request, in `max_bytes`; one thread calls it.

    Prompts with a LoRA, images or embeddings are hashed by vLLM alone, as are later blocks of a
    request, which its reply fills.
    """

    def __init__(self, hasher: Hasher, block_tokens: int, max_bytes: int) -> None:
        self.num_bytes = 0
        self._hasher = hasher
        self._num_blocks = max(1, CHUNK_TOKENS // block_tokens)
        self._num_tokens = self._num_blocks * block_tokens
        self._max_bytes = max_bytes
        self._chunks: OrderedDict[Hashable, _Chunk] = OrderedDict()
        self._numbers = count()

    def __call__(self, request: Any) -> list[bytes]:
        """The hashes of the request's blocks that it has not yet."""
        if request.block_hashes or not _is_plain(request):
            return self._hasher(request)
        keys, hashes = self._known(request)
        request.block_hashes.extend(hashes)  # vLLM's hasher begins behind them
        new = self._hasher(request)
        request.block_hashes.clear()
        hashes += new
        self._keep(request, keys, hashes)
        return hashes

    def _known(self, request: Any) -> tuple[list[Hashable], list[bytes]]:
        """The keys and hashes of the chunks that an earlier prompt began with."""
        keys: list[Hashable] = []
        hashes: list[bytes] = []
        before: Hashable = ("salt", request.cache_salt)
        ids, num_tokens = request.prompt_token_ids, self._num_tokens
        for start in range(0, len(ids) - num_tokens + 1, num_tokens):
            key = (before, array("I", ids[start : start + num_tokens]).tobytes())
            chunk = self._chunks.get(key)
            if chunk is None:
                break
            keys.append(key)
            hashes += chunk.hashes
            before = chunk.number
        return keys, hashes

    def _keep(self, request: Any, keys: list[Hashable], hashes: list[bytes]) -> None:
        """Keep the chunks that were new; a chunk is forgotten before those in front of it."""
        ids, size = request.prompt_token_ids, self._num_tokens
        before: Hashable = ("salt", request.cache_salt)
        if keys:
            before = self._chunks[keys[-1]].number
        for place in range(len(keys), len(ids) // size):
            keys.append((before, array("I", ids[place * size : (place + 1) * size]).tobytes()))
            of_chunk = hashes[place * self._num_blocks : (place + 1) * self._num_blocks]
            before = next(self._numbers)
            self._chunks[keys[-1]] = _Chunk(before, of_chunk)
            self.num_bytes += self._bytes_per_chunk
        for key in reversed(keys):
            self._chunks.move_to_end(key)
        while self.num_bytes > self._max_bytes:
            self._chunks.popitem(last=False)
            self.num_bytes -= self._bytes_per_chunk

    @property
    def _bytes_per_chunk(self) -> int:
        return 4 * self._num_tokens + BYTES_PER_HASH * self._num_blocks + BYTES_PER_CHUNK


def _is_plain(request: Any) -> bool:
    """Whether its blocks hang on its token ids and its `cache_salt` alone."""
    return (
        request.prompt_token_ids is not None
        and len(request.prompt_token_ids) >= MIN_PROMPT_TOKENS
        and request.prompt_embeds is None
        and request.lora_request is None
        and not request.mm_features
    )
