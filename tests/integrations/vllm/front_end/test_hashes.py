"""vLLM's requests have the block hashes that stock gives them, without hashing all blocks again."""

from __future__ import annotations

import random
from typing import Any

from vllm import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from agentkv.integrations.vllm.front_end.hashes import ContinuedHasher

BLOCK_TOKENS = 16
init_none_hash(sha256_cbor)
STOCK = get_request_block_hasher(BLOCK_TOKENS, sha256_cbor)


class Counted:
    """Stock's hasher, which counts the blocks that it hashes."""

    def __init__(self) -> None:
        self.num_blocks = 0

    def __call__(self, request: Any) -> list[Any]:
        hashes = STOCK(request)
        self.num_blocks += len(hashes)
        return hashes


def request_of(ids: list[int], hasher: Any, salt: str | None = None) -> Request:
    params = SamplingParams(max_tokens=8)
    return Request("x", list(ids), params, None, cache_salt=salt, block_hasher=hasher)


def test_hashes_are_stocks() -> None:
    """After any edits of a prompt, with salts and replies, each block has stock's hash."""
    chance = random.Random(3)
    counted = Counted()
    ours = ContinuedHasher(counted, BLOCK_TOKENS, 300_000)
    ids = [chance.randrange(50_000) for _ in range(9_000)]
    num_blocks = 0
    for number in range(60):
        place = chance.randrange(len(ids))
        if number % 4 == 0:
            ids[place:place] = [chance.randrange(50_000)] * chance.randrange(1, 40)
        elif number % 7 == 0:
            del ids[place:][: chance.randrange(4_000)]
        ids += [chance.randrange(50_000) for _ in range(chance.randrange(300))]
        salt = (None, "a", "b")[number % 3]
        made = [request_of(ids, hasher, salt) for hasher in (STOCK, ours)]
        for request in made:
            request.append_output_token_ids(list(range(40)))
        assert made[0].block_hashes == made[1].block_hashes
        assert ours.num_bytes <= 300_000
        num_blocks += len(made[0].block_hashes)
    assert counted.num_blocks < 0.8 * num_blocks


def test_a_continued_prompt_hashes_its_end_alone() -> None:
    """Blocks up to the last chunk of 1,024 tokens come from the turn before."""
    counted = Counted()
    ours = ContinuedHasher(counted, BLOCK_TOKENS, 2**20)
    ids = list(range(10_000))
    request_of(ids, ours)
    before = counted.num_blocks
    request_of(ids + ids[:500], ours)
    assert counted.num_blocks - before <= (1024 + 500) / BLOCK_TOKENS


def test_a_short_memory_keeps_the_beginnings() -> None:
    """The end of a prompt is forgotten before its beginning, without which it cannot be found."""
    counted = Counted()
    ours = ContinuedHasher(counted, BLOCK_TOKENS, 50_000)
    ids = list(range(20_000))
    request_of(ids, ours)
    before = counted.num_blocks
    assert request_of(ids, ours).block_hashes == request_of(ids, STOCK).block_hashes
    assert counted.num_blocks - before < len(ids) / BLOCK_TOKENS - 200
