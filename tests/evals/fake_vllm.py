"""A server that speaks as much vLLM as `bench` needs: token ids, exact lengths, a prefix cache.

Tokens are made up from the prompt, so equal prompts get equal outputs, as greedy decoding gives.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from agentkv.protocol import header_fields
from tests.http_front import Answer, HttpFront
from tests.scripted_server import openai_error

BLOCK_TOKENS = 16
MAX_CONTEXT_TOKENS = 4096


class FakeVllm:
    """`policy` None has no agentkv routes; `dies_at_turn` cuts all connections at that request."""

    def __init__(
        self,
        *,
        policy: str | None = None,
        turn_s: float = 0.0,
        dies_at_turn: int | None = None,
        fails_at_turn: int | None = None,
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        self._policy = policy
        self._turn_s = turn_s
        self._dies_at_turn = dies_at_turn
        self._fails_at_turn = fails_at_turn
        self._lock = threading.Lock()
        self._seen: dict[str, list[int]] = {}
        self._over = threading.Event()
        self._front = HttpFront(self._answer)

    def __enter__(self) -> Self:
        self._front.start()
        self.base_url = f"{self._front.url}/v1"
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._front.stop()

    def _answer(self, method: str, path: str, headers: Mapping[str, str], body: Any) -> Answer:
        if path == "/v1/completions":
            return self._play({**header_fields(headers), **body})
        answers: dict[str, Any] = {
            "/v1/models": {"data": [{"id": "fake", "max_model_len": MAX_CONTEXT_TOKENS}]},
            "/version": {"version": "0.0.fake"},
        }
        if path == "/tokenize":
            answers[path] = {"tokens": [ord(char) for char in body["prompt"][::3]]}
        if self._policy is not None:
            settings = {"rules": "paper"}
            info = {"wire_version": 1, "policy": self._policy, "settings": settings}
            answers |= {"/v1/agentkv/info": info, "/v1/agentkv/stats": {"pins": 0}}
        if path in answers:
            return Answer(200, answers[path])
        is_event = self._policy is not None and path.startswith("/v1/agentkv/jobs/")
        return Answer(200, {}) if is_event else Answer(404, openai_error(404, "Not Found"))

    def _play(self, body: dict[str, Any]) -> Answer:
        with self._lock:
            self.requests.append(body)
            number = len(self.requests)
        if number == self._dies_at_turn:
            self._front.stop()
        if number == self._fails_at_turn:
            return Answer(500, openai_error(500, "out of luck"))
        self._over.wait(self._turn_s)
        return Answer(200, self._complete(body))

    def _complete(self, body: dict[str, Any]) -> Iterator[bytes]:
        prompt, num_outputs = body["prompt"], body["max_tokens"]
        known = self._seen.get(body["cache_salt"], [])
        pairs = zip(known, prompt, strict=False)
        cached = next((place for place, (a, b) in enumerate(pairs) if a != b), len(known))
        cached = min(cached, len(prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        outputs = [(sum(prompt) + place) % 1000 for place in range(num_outputs)]
        self._seen[body["cache_salt"]] = [*prompt, *outputs]
        for token in outputs:
            yield _event({"choices": [{"index": 0, "text": "x", "token_ids": [token]}]})
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": num_outputs,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        yield _event({"choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"


@contextmanager
def answering(answer: Callable[[str], Answer]) -> Iterator[str]:
    """A server that answers by path; yields its root URL."""
    front = HttpFront(lambda _, path, *rest: answer(path))
    front.start()
    try:
        yield front.url
    finally:
        front.stop()


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"
