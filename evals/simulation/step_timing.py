"""Times single steps of a running server from outside: prefills and decodes of known size.

Prompts are token ids, each different from the first token on, so that none is in the cache. The
server must be otherwise idle.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any

import httpx

from agentkv.errors import AgentKVError

from .cost import Batch
from .cost_fit import TimedStep

PREFILL_TOKENS = (16, 64, 128, 256, 512, 1024, 1536, 2048)
DECODE_BATCHES = ((1, 64), (1, 512), (1, 1536), (2, 256), (4, 64), (4, 768), (8, 256))
"""(requests at once, tokens of each prompt)."""
DECODE_S = 1.0
"""A decode lasts about so long, so that requests sent at once decode side by side mostly."""
MIN_DECODE_TOKENS, MAX_DECODE_TOKENS = 32, 256
REPEATS = 3
_TIMEOUT_S = 300.0


class TimingError(AgentKVError):
    """The server did not answer a probe, or not as it must for its times to mean something."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Tokens of a completion that have come by a time on the monotonic clock."""

    at_s: float
    num_tokens: int


class StepTimer:
    """Sends probes to one server; a context manager."""

    def __init__(
        self,
        root_url: str,
        model: str,
        token_ids: Sequence[int],
        *,
        api_key: str | None,
        max_tokens: int,
        seed: int,
    ) -> None:
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._http = httpx.Client(
            base_url=root_url,
            headers=headers,
            timeout=_TIMEOUT_S,
            limits=httpx.Limits(max_connections=64),
        )
        self._model = model
        self._token_ids = token_ids
        self._max_tokens = max_tokens
        self._random = random.Random(seed)

    def __enter__(self) -> StepTimer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._http.close()

    def time_all(self, say: Callable[[str], None]) -> Iterator[TimedStep]:
        """Every probe that the server's longest context allows; the first ones warm it up."""
        for _ in range(2):
            self._prefill_s(64)
        decode_tokens = self._decode_tokens()
        for num_tokens in PREFILL_TOKENS:
            if num_tokens < self._max_tokens:
                seconds = min(self._prefill_s(num_tokens) for _ in range(REPEATS))
                say(f"prefill of {num_tokens} tokens: {seconds * 1e3:.1f} ms")
                batch = Batch()
                batch.add_prefill(num_tokens, 0)
                yield TimedStep(batch, seconds, has_request=True)
        for num_requests, num_tokens in DECODE_BATCHES:
            if num_tokens + decode_tokens < self._max_tokens:
                seconds = min(
                    self._decode_s(num_requests, num_tokens, decode_tokens) for _ in range(REPEATS)
                )
                say(f"decode of {num_requests} x {num_tokens} tokens: {seconds * 1e3:.1f} ms")
                batch = Batch()
                for _ in range(num_requests):
                    batch.add_decode(num_tokens + decode_tokens // 2)
                yield TimedStep(batch, seconds, has_request=False)

    def _prompt(self, num_tokens: int) -> list[int]:
        return self._random.choices(self._token_ids, k=num_tokens)

    def _prefill_s(self, num_tokens: int) -> float:
        """From sending to the first token."""
        sent_s = time.monotonic()
        return self._stream(self._prompt(num_tokens), 1, None)[0].at_s - sent_s

    def _decode_tokens(self) -> int:
        """How many tokens this server decodes in DECODE_S."""
        sent_s = time.monotonic()
        ended_s = self._stream(self._prompt(16), MIN_DECODE_TOKENS, None)[-1].at_s
        num_tokens = int(MIN_DECODE_TOKENS * DECODE_S / (ended_s - sent_s))
        return min(max(num_tokens, MIN_DECODE_TOKENS), MAX_DECODE_TOKENS)

    def _decode_s(self, num_requests: int, num_tokens: int, decode_tokens: int) -> float:
        """A step, while so many requests decode at once."""
        start = threading.Barrier(num_requests)
        prompts = [self._prompt(num_tokens) for _ in range(num_requests)]
        with ThreadPoolExecutor(num_requests) as pool:
            jobs = [pool.submit(self._stream, prompt, decode_tokens, start) for prompt in prompts]
            streams = [job.result() for job in jobs]
        # while all decode: from the last one's first token to the first one's last
        begin_s = max(stream[0].at_s for stream in streams)
        end_s = min(stream[-1].at_s for stream in streams)
        steps_s = [
            (seen[-1].at_s - seen[0].at_s) / (seen[-1].num_tokens - seen[0].num_tokens)
            for stream in streams
            if len(seen := [event for event in stream if begin_s <= event.at_s <= end_s]) > 1
        ]
        if not steps_s:
            raise TimingError(
                f"{num_requests} requests of {num_tokens} tokens did not decode side by side: "
                "is the server idle otherwise, and its --max-num-seqs 8 or more?"
            )
        return median(steps_s)

    def _stream(
        self, prompt: list[int], max_tokens: int, start: threading.Barrier | None
    ) -> list[Arrival]:
        """When each part of one completion arrived."""
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            # tokens so far in each event: fast ones come several in one
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if start is not None:
            start.wait(_TIMEOUT_S)
        try:
            with self._http.stream("POST", "/v1/completions", json=body) as answer:
                if not answer.is_success:
                    answer.read()
                    raise TimingError(
                        f"{answer.url}: HTTP {answer.status_code} {answer.text[:200]}"
                    )
                seen = [arrival for line in answer.iter_lines() if (arrival := _arrival(line))]
        except httpx.HTTPError as error:
            raise TimingError(f"{self._http.base_url}: no answer to a probe: {error}") from error
        if not seen or seen[-1].num_tokens != max_tokens:
            raise TimingError(
                f"{self._http.base_url}: asked for {max_tokens} tokens, counted "
                f"{seen[-1].num_tokens if seen else 0}: is it a vLLM server?"
            )
        return seen


def _arrival(line: str) -> Arrival | None:
    """What a line of the stream brings, if it brings tokens."""
    at_s = time.monotonic()
    if not line.startswith("data: {"):
        return None
    event: dict[str, Any] = json.loads(line.removeprefix("data: "))
    num_tokens = (event.get("usage") or {}).get("completion_tokens", 0)
    return Arrival(at_s, num_tokens) if event.get("choices") and num_tokens else None
