"""Times single steps of a running server from outside: prefills and decodes of known size.

Prompts are token ids, each different from the first token on, so that none is in the cache. The
server must be otherwise idle. A decode step is the difference between completions of many tokens
and of one: how the server bunches a stream's events does not matter.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from agentkv.errors import AgentKVError

from .cost import Batch
from .cost_fit import TimedStep

PREFILL_TOKENS = (16, 64, 128, 256, 512, 1024, 1536, 2048)
DECODE_BATCHES = ((1, 64), (1, 512), (1, 1536), (2, 256), (4, 64), (4, 768), (8, 256))
"""(requests at once, tokens of each prompt)."""
DECODE_S = 1.0
"""A completion decodes for about so long."""
MIN_DECODE_TOKENS, MAX_DECODE_TOKENS = 32, 256
DEFAULT_ROUNDS = 4
_TIMEOUT_S = 300.0


Probe = tuple[int, int, int]


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

    def time_all(self, num_rounds: int, say: Callable[[str], None]) -> list[TimedStep]:
        """Every probe that the server's longest context allows, the fastest of so many rounds.

        Rounds are far apart in time, so that a busy minute spoils one of them and not a probe.
        """
        for _ in range(2):  # the first ones warm the server up
            self._completions_s(1, 64, 1)
        decode_tokens = self._decode_tokens()
        probes = list(self._probes(decode_tokens))
        fastest_s = dict.fromkeys(probes, math.inf)
        for number in range(num_rounds):
            say(f"round {number + 1} of {num_rounds}: {len(probes)} probes")
            for probe in probes:
                seconds = self._completions_s(*probe)
                fastest_s[probe] = min(fastest_s[probe], seconds)
        return list(_steps(fastest_s, decode_tokens))

    def _probes(self, decode_tokens: int) -> Iterator[Probe]:
        """(requests at once, tokens of each prompt, tokens of each output)."""
        for num_tokens in PREFILL_TOKENS:
            if num_tokens < self._max_tokens:
                yield 1, num_tokens, 1
        for num_requests, num_tokens in DECODE_BATCHES:
            if num_tokens + decode_tokens <= self._max_tokens:
                yield num_requests, num_tokens, 1
                yield num_requests, num_tokens, decode_tokens

    def _decode_tokens(self) -> int:
        """How many tokens this server decodes in DECODE_S, the first one's prefill included."""
        seconds = self._completions_s(1, 16, MIN_DECODE_TOKENS)
        num_tokens = int(MIN_DECODE_TOKENS * DECODE_S / seconds)
        return min(max(num_tokens, MIN_DECODE_TOKENS), MAX_DECODE_TOKENS)

    def _completions_s(self, num_requests: int, num_tokens: int, output_tokens: int) -> float:
        """From sending so many requests at once to the end of the last."""
        prompts = [self._random.choices(self._token_ids, k=num_tokens) for _ in range(num_requests)]
        with ThreadPoolExecutor(num_requests) as pool:
            sent_s = time.monotonic()
            for done in [pool.submit(self._complete, prompt, output_tokens) for prompt in prompts]:
                done.result()
            return time.monotonic() - sent_s

    def _complete(self, prompt: list[int], output_tokens: int) -> None:
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        try:
            answer = self._http.post("/v1/completions", json=body)
        except httpx.HTTPError as error:
            raise TimingError(f"{self._http.base_url}: no answer to a probe: {error}") from error
        if not answer.is_success:
            raise TimingError(f"{answer.url}: HTTP {answer.status_code} {answer.text[:200]}")
        num_tokens = _output_tokens(answer)
        if num_tokens != output_tokens:
            raise TimingError(
                f"{answer.url}: asked for {output_tokens} tokens, got {num_tokens}: is it a vLLM "
                "server?"
            )


def _output_tokens(answer: httpx.Response) -> Any:
    """As its usage has them; None where it has none."""
    try:
        return answer.json()["usage"]["completion_tokens"]
    except (LookupError, TypeError, ValueError):
        return None


def _steps(fastest_s: Mapping[Probe, float], decode_tokens: int) -> Iterator[TimedStep]:
    """Prefills as they were timed; decodes as the difference that the further tokens made."""
    for num_tokens in PREFILL_TOKENS:
        if (1, num_tokens, 1) in fastest_s:
            batch = Batch()
            batch.add_prefill(num_tokens, 0)
            yield TimedStep(batch, fastest_s[1, num_tokens, 1], has_request=True)
    for num_requests, num_tokens in DECODE_BATCHES:
        whole_s = fastest_s.get((num_requests, num_tokens, decode_tokens))
        if whole_s is None:
            continue
        more_s = whole_s - fastest_s[num_requests, num_tokens, 1]
        if more_s <= 0.0:
            raise TimingError(
                f"{decode_tokens} tokens of output took no longer than one: is something else "
                "running on this server?"
            )
        batch = Batch()
        for _ in range(num_requests):
            batch.add_decode(num_tokens + decode_tokens // 2)
        yield TimedStep(batch, more_s / (decode_tokens - 1), has_request=False)
