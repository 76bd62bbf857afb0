"""Asks a server for the same replies with and without hits in its prefix cache, and compares them.

Sends six requests that generate a few tokens each. They are untagged, and no prompt repeats a reply
of the server: no job comes of them, no predictor learns of them, no page shows them. Hits of theirs
alone: each conversation has a `cache_salt` of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx

from .check import Check, ok, warn
from .server import connect

NUM_TURNS, REPLY_TOKENS = 3, 24
MIN_TOKENS = 64
"""Tokens to which a smaller unit of hits is raised."""
TOP = 5
"""Likeliest tokens that are asked for with each token of a reply."""
TIMEOUT_S = 300.0
NAME = "hits"

BUGS = (
    "a difference below about 0.1 may be rounding; above, a hit brought a wrong state: "
    "--no-enable-prefix-caching avoids it, vllm#47194 and #49127 are known causes"
)
NO_PLUGIN = warn(
    NAME, "not compared: the server does not run one of agentkv's policies", "start it with one"
)
OTHERS = "ask again while the server has nothing else to do, or start it with --max-num-seqs 1"
NO_COUNT = "start it with --enable-prompt-tokens-details"


@dataclass(frozen=True, slots=True)
class Answered:
    """What came of one prompt; `hit_tokens` is None where nobody says."""

    token_ids: tuple[str, ...]
    log_probabilities: tuple[float, ...]
    likeliest: tuple[dict[str, float], ...]
    hit_tokens: int | None


def check_hits(
    url: str, api_key: str | None, *, transport: httpx.BaseTransport | None = None
) -> Iterator[Check]:
    """Yield whether a hit changes what the server at `url` says; `transport` is for tests."""
    try:
        with connect(url, api_key, TIMEOUT_S, transport) as client:
            yield _compare(client)
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        seen = f"a request failed ({type(error).__name__}: {error})"
        yield warn(NAME, seen, "look into the server's log")


def _compare(client: httpx.Client) -> Check:
    model = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
    info = client.get("/v1/agentkv/info").raise_for_status().json()
    unit_tokens = max(MIN_TOKENS, info["block_size"], info.get("hit_tokens", 1))
    # each prompt goes on for three quarters of a unit behind the one before
    lengths = [unit_tokens * (6 + 3 * turn) // 4 for turn in range(NUM_TURNS)]
    fitting = [length for length in lengths if length + REPLY_TOKENS <= info["max_model_len"]]
    if len(fitting) < 2:
        seen = f"contexts of {info['max_model_len']} tokens are too short for hits of {unit_tokens}"
        return warn(NAME, seen, "give it a longer --max-model-len")
    prompt = _prompt(client, model, fitting[-1])
    salt = uuid4().hex
    found = [_ask(client, model, prompt[:length], salt) for length in fitting]
    computed = [_ask(client, model, prompt[:length], uuid4().hex) for length in fitting]
    return _said(found, computed, unit_tokens)


def _prompt(client: httpx.Client, model: str, num_tokens: int) -> list[int]:
    """Tokens of a text that is new each time, and that no reply repeats by chance."""
    text = "".join(f"{uuid4().hex}\n" for _ in range(num_tokens // 32))
    body = {"model": model, "prompt": text, "add_special_tokens": False}
    tokens = list(client.post("/tokenize", json=body).raise_for_status().json()["tokens"])
    return (tokens * (num_tokens // len(tokens) + 1))[:num_tokens]


def _ask(client: httpx.Client, model: str, prompt: list[int], salt: str) -> Answered:
    body = {
        **{"model": model, "prompt": prompt, "cache_salt": salt, "temperature": 0, "logprobs": TOP},
        **{"max_tokens": REPLY_TOKENS, "ignore_eos": True, "return_tokens_as_token_ids": True},
    }
    answer = client.post("/v1/completions", json=body).raise_for_status().json()
    details = answer["usage"].get("prompt_tokens_details") or {}
    chances = answer["choices"][0]["logprobs"]
    return Answered(
        tuple(chances["tokens"]),
        tuple(chances["token_logprobs"]),
        tuple(chances["top_logprobs"]),
        details.get("cached_tokens"),
    )


def _said(found: list[Answered], computed: list[Answered], unit_tokens: int) -> Check:
    first = _difference(found[0], computed[0])
    if first is not None:
        seen = f"the same prompt without a hit has two replies ({first}): nothing can be compared"
        return warn(NAME, seen, OTHERS)
    hits = [reply.hit_tokens for reply in found[1:]]
    if None in hits:
        return warn(NAME, "nobody says whether a prompt was found in the cache", NO_COUNT)
    if not all(hits):
        seen = f"turns that continue another found {hits} tokens, by units of {unit_tokens}"
        return warn(NAME, seen, "without hits nothing is compared: is the cache too small or busy?")
    for turn, (reply, other) in enumerate(zip(found[1:], computed[1:], strict=True), start=2):
        if (difference := _difference(reply, other)) is not None:
            seen = f"a hit of {reply.hit_tokens:,} tokens changed turn {turn}: {difference}"
            return warn(NAME, seen, BUGS)
    moved = max(
        abs(mine - its)
        for reply, other in zip(found, computed, strict=True)
        for mine, its in zip(reply.log_probabilities, other.log_probabilities, strict=True)
    )
    told = " and ".join(f"{number:,}" for number in hits)
    seen = f"hits of {told} tokens changed no token of a reply, log probabilities by {moved:.4f}"
    return ok(NAME, seen)


def _difference(reply: Answered, other: Answered) -> str | None:
    """Where two replies part, and how much likelier the other's token was without the hit."""
    pairs: Any = zip(reply.token_ids, other.token_ids, other.likeliest, strict=True)
    for number, (mine, its, likeliest) in enumerate(pairs, start=1):
        if mine == its:
            continue
        if mine in likeliest:
            return f"token {number} differs, less likely by {likeliest[its] - likeliest[mine]:.3f}"
        return f"token {number} differs, and is not among the {TOP} likeliest"
    return None
