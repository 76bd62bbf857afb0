"""The server under test, as the pin experiment sees it: chat, readings of `/metrics`, jobs.

Plain HTTP without the client library, so that what is sent is on this page. Works with servers
that lack the agentkv routes.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import httpx

from agentkv.client.transport import ServerAPI, StatusError
from agentkv.errors import AgentKVServerError

from .server_metrics import BlockPool, PageError, Snapshot, parse_block_pool, parse_snapshot

_TURN_TIMEOUT_S = 300.0  # a cold CPU server may take a minute for one turn
_PAGE_TIMEOUT_S = 10.0
_MAX_OUTPUT_TOKENS = 32


class TurnError(Exception):
    """A turn that the server did not answer, so that the run cannot go on."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer; `cached_tokens` is None if the server does not report it."""

    text: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    latency_s: float


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What stays the same during a run; `policy` is None without the agentkv routes."""

    model: str
    policy: str | None
    pool: BlockPool


class PinServer:
    """A server behind `base_url` (with or without `/v1`); a context manager.

    `facts` and `snapshot` raise httpx.HTTPError, PageError or AgentKVServerError if the server
    cannot be reached or is no vLLM server.
    """

    def __init__(self, base_url: str, *, api_key: str | None = None) -> None:
        self._api = ServerAPI(base_url, api_key=api_key)
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._http = httpx.Client(
            base_url=self._api.root_url, headers=headers, timeout=_PAGE_TIMEOUT_S
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._http.close()

    def facts(self, model: str | None) -> ServerFacts:
        """Asks once; `model` None takes the first that the server offers."""
        model = model or self._first_model()
        try:
            info = self._api.info()
        except StatusError as error:
            if error.status != httpx.codes.NOT_FOUND:
                raise
            return ServerFacts(model, None, parse_block_pool(self._get("/metrics").text))
        try:
            num_blocks = int(info["num_blocks"]) // int(info.get("num_engines", 1))
            pool = BlockPool(int(info["block_size"]), num_blocks)
            return ServerFacts(model, str(info["policy"]), pool)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise PageError(
                f"/v1/agentkv/info does not tell policy, block size and number of blocks: {info}"
            ) from error

    def snapshot(self) -> Snapshot:
        """One reading of `/metrics`."""
        return parse_snapshot(self._get("/metrics").text)

    def chat(
        self, model: str, messages: list[dict[str, str]], *, job_id: str, is_last_step: bool
    ) -> Reply:
        """One turn of a job, greedy; raises TurnError if no answer comes."""
        body = {
            "model": model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": _MAX_OUTPUT_TOKENS,
            "job_id": job_id,
            "is_last_step": is_last_step,
        }
        started_s = time.monotonic()
        try:
            response = self._http.post("/v1/chat/completions", json=body, timeout=_TURN_TIMEOUT_S)
        except httpx.HTTPError as error:
            raise TurnError(f"the server did not answer: {error!r}") from error
        latency_s = time.monotonic() - started_s
        if not response.is_success:
            raise TurnError(f"HTTP {response.status_code}: {response.text[:300]}")
        try:
            return _reply(response.json(), latency_s)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise TurnError(f"no chat reply with its usage: {response.text[:300]}") from error

    def ttl_left_s(self, job_id: str) -> float | None:
        """Seconds until the job's pin runs out; None if nothing is pinned or the server is mute."""
        try:
            ttl_left_s = self._api.job(job_id).get("ttl_left_s")
        except AgentKVServerError:
            return None
        return None if ttl_left_s is None else float(ttl_left_s)

    def release(self, job_id: str) -> None:
        """Frees what the job has pinned, if the server can and knows it."""
        with suppress(AgentKVServerError):  # no plugin, or the job is over
            self._api.release(job_id)

    def _first_model(self) -> str:
        try:
            return str(self._get("/v1/models").json()["data"][0]["id"])
        except (LookupError, TypeError, ValueError) as error:
            raise PageError("/v1/models names no model: give one with --model") from error

    def _get(self, path: str) -> httpx.Response:
        return self._http.get(path).raise_for_status()


def _reply(answer: dict[str, Any], latency_s: float) -> Reply:
    usage = answer["usage"]
    details = usage.get("prompt_tokens_details") or {}
    return Reply(
        text=answer["choices"][0]["message"]["content"] or "",
        prompt_tokens=usage["prompt_tokens"],
        output_tokens=usage["completion_tokens"],
        cached_tokens=details.get("cached_tokens"),
        latency_s=latency_s,
    )
