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
from itertools import pairwise
from statistics import median
from typing import Any

import httpx

from agentkv.errors import AgentKVError

from .cost import Batch
from .cost_fit import TimedStep

PREFILL_TOKENS = (16, 64, 128, 256, 512, 1024, 1536, 2048)
DECODE_BATCHES = ((1, 64), (1, 512), (1, 1536), (2, 256), (4, 64), (4, 768), (8, 256))
"""(requests at once, tokens of each prompt)."""
DECODE_TOKENS = 24
REPEATS = 3
_TIMEOUT_S = 300.0


class TimingError(AgentKVError):
    """The server did not answer a probe, or not as it must for its times to mean something."""


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
        for num_tokens in PREFILL_TOKENS:
            if num_tokens < self._max_tokens:
                seconds = min(self._prefill_s(num_tokens) for _ in range(REPEATS))
                say(f"prefill of {num_tokens} tokens: {seconds * 1e3:.1f} ms")
                batch = Batch()
                batch.add_prefill(num_tokens, 0)
                yield TimedStep(batch, seconds, has_request=True)
        for num_requests, num_tokens in DECODE_BATCHES:
            if num_tokens + DECODE_TOKENS < self._max_tokens:
                seconds = min(self._decode_s(num_requests, num_tokens) for _ in range(REPEATS))
                say(f"decode of {num_requests} x {num_tokens} tokens: {seconds * 1e3:.1f} ms")
                batch = Batch()
                for _ in range(num_requests):
                    batch.add_decode(num_tokens + DECODE_TOKENS // 2)
                yield TimedStep(batch, seconds, has_request=False)

    def _prompt(self, num_tokens: int) -> list[int]:
        return self._random.choices(self._token_ids, k=num_tokens)

    def _prefill_s(self, num_tokens: int) -> float:
        """From sending to the first token."""
        sent_s = time.monotonic()
        return self._token_times(self._prompt(num_tokens), 1, None)[0] - sent_s

    def _decode_s(self, num_requests: int, num_tokens: int) -> float:
        """Between two tokens, while so many requests decode at once."""
        start = threading.Barrier(num_requests)
        prompts = [self._prompt(num_tokens) for _ in range(num_requests)]
        with ThreadPoolExecutor(num_requests) as pool:
            jobs = [
                pool.submit(self._token_times, prompt, DECODE_TOKENS, start) for prompt in prompts
            ]
            times = [job.result() for job in jobs]
        begin_s, end_s = max(of[0] for of in times), min(of[-1] for of in times)
        gaps = [
            later - earlier
            for of in times
            for earlier, later in pairwise(of)
            if begin_s <= earlier and later <= end_s
        ]
        if len(gaps) < num_requests * 4:
            raise TimingError(
                f"{num_requests} requests of {num_tokens} tokens did not decode side by side: "
                "is the server idle otherwise, and its --max-num-seqs 8 or more?"
            )
        return median(gaps)

    def _token_times(
        self, prompt: list[int], max_tokens: int, start: threading.Barrier | None
    ) -> list[float]:
        """When each token of one completion arrived, on the monotonic clock."""
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        if start is not None:
            start.wait(_TIMEOUT_S)
        times: list[float] = []
        try:
            with self._http.stream("POST", "/v1/completions", json=body) as answer:
                if not answer.is_success:
                    answer.read()
                    raise TimingError(
                        f"{answer.url}: HTTP {answer.status_code} {answer.text[:200]}"
                    )
                times = [time.monotonic() for line in answer.iter_lines() if _is_token(line)]
        except httpx.HTTPError as error:
            raise TimingError(f"{self._http.base_url}: no answer to a probe: {error}") from error
        if not times:
            raise TimingError(f"{self._http.base_url}: a completion without a token")
        return times


def _is_token(line: str) -> bool:
    if not line.startswith("data: {"):
        return False
    event: dict[str, Any] = json.loads(line.removeprefix("data: "))
    return bool(event.get("choices"))
