"""A server under test: what it serves, its tokenizer, its metrics, single turns.

Every command that measures a running server goes through here. What only vLLM or the agentkv plugin
has is None or empty elsewhere. Plain HTTP without the client library, so what is sent is on this
page.
"""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
from prometheus_client.parser import text_string_to_metric_families

from agentkv.client.server import shown
from agentkv.errors import AgentKVError, AgentKVServerError, StatusError
from agentkv.server.api import ServerAPI
from agentkv.visible import visible

WORDS = (
    "parser token schema query cache router loader signal table column index cursor buffer stream "
    "session request header worker queue task result record field value config option template "
    "filter module package path file folder branch commit error message load read write build "
    "check merge split update remove create open close send find count sort group render reset "
    "return raise handle after each other once more keep"
)
"""Of which prompts are made, at random by a seed: any two differ within a few words."""
PREEMPTIONS = "vllm:num_preemptions_total"
_TIMEOUT_S = 30.0  # an engine in the middle of a long prefill answers late
_TURN_TIMEOUT_S = 300.0  # a cold CPU server may take a minute for one turn
_CONNECT_TIMEOUT_S = 5.0


class TurnError(AgentKVServerError):
    """The server did not answer a turn, so the run cannot go on."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What stays the same during a run; `info` is the plugin's, None without the agentkv routes."""

    model: str
    max_context_tokens: int | None
    vllm_version: str | None
    info: Mapping[str, Any] | None

    @property
    def policy(self) -> str | None:
        """Name of the plugin's policy, None on a server without the agentkv routes."""
        return None if self.info is None else str(self.info["policy"])


@dataclass(frozen=True, slots=True)
class BlockPool:
    """The KV cache of each engine, without vLLM's null block, which never holds anything."""

    block_size: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One reading of `/metrics`."""

    usage_by_engine: Mapping[str, float]
    num_finished: int
    cached_tokens: int

    def held_blocks(self, pool: BlockPool) -> int:
        """Blocks in use over all engines, from usage = 1 - free / (blocks - 1)."""
        return sum(round(usage * pool.num_blocks) for usage in self.usage_by_engine.values())


class ServerUnderTest:
    """A server behind `base_url` (with or without `/v1`); a context manager.

    Every method raises AgentKVServerError if the server cannot be reached, or answers something
    else than the measurement needs.
    """

    def __init__(self, base_url: str, *, api_key: str | None = None) -> None:
        self._api = ServerAPI(base_url, api_key=api_key)
        self.root_url = self._api.root_url
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        try:
            self._http = httpx.Client(base_url=self.root_url, headers=headers, timeout=_TIMEOUT_S)
        except httpx.InvalidURL as error:
            raise AgentKVServerError(f"{base_url}: not a URL: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._http.close()

    def facts(self, model: str | None = None) -> ServerFacts:
        """Ask what the server serves; `model` None takes the first model it offers."""
        hint = "is this an OpenAI-compatible server's base URL, and the API key right (--api-key)?"
        answer = self._request("GET", "/v1/models", hint=hint)
        with _read(f"{answer.url} names no model: {answer.text[:200]}"):
            offered = {str(entry["id"]): entry for entry in answer.json()["data"]}
            chosen = model or next(iter(offered), "")
        if chosen not in offered:
            serves = visible(", ".join(offered))
            raise AgentKVServerError(
                f"{self.root_url} does not serve {model!r}; it serves {serves}"
            )
        limit = offered[chosen].get("max_model_len")
        version = None
        with suppress(AttributeError, ValueError):
            version = self._request("GET", "/version").json().get("version")
        return ServerFacts(
            model=chosen,
            max_context_tokens=limit if isinstance(limit, int) else None,
            vllm_version=version if isinstance(version, str) else None,
            info=self._info(),
        )

    def block_pool(self, facts: ServerFacts) -> BlockPool:
        """Size of the KV cache, from the plugin or from vLLM's `cache_config_info` metric."""
        if facts.info is None:
            return parse_block_pool(self._page())
        with _read(f"/v1/agentkv/info tells no block size and number of blocks: {facts.info}"):
            num_blocks = int(facts.info["num_blocks"]) // int(facts.info.get("num_engines", 1))
            return BlockPool(int(facts.info["block_size"]), num_blocks)

    def vocabulary(self, model: str) -> list[int]:
        """The tokens of WORDS, of which prompts are made, from vLLM's `/tokenize`."""
        hint = "exact prompt lengths need it: is this a vLLM server?"
        body = {"model": model, "prompt": WORDS, "add_special_tokens": False}
        answer = self._request("POST", "/tokenize", body, hint=hint)
        with _read(f"{answer.url} gives no tokens: {answer.text[:200]}; {hint}"):
            return sorted({int(token) for token in answer.json()["tokens"]})

    def preemptions(self) -> int | None:
        """Requests preempted so far; None from a server that does not say: it ends no run."""
        with suppress(AgentKVServerError):
            if found := _samples(self._page()).get(PREEMPTIONS):
                return int(sum(value for _, value in found))
        return None

    def timestamps(self) -> dict[str, Any] | None:
        """The plugin's event log of each job; None on a server without one."""
        try:
            return self._api.timestamps()
        except AgentKVServerError:
            return None

    def snapshot(self) -> Snapshot:
        """Read `/metrics` once."""
        return parse_snapshot(self._page())

    def complete(
        self, body: Mapping[str, Any], *, job_id: str, is_last_step: bool
    ) -> dict[str, Any]:
        """Run one turn of a job; returns the reply with its usage and token ids.

        Tags go in headers, which any server takes. Raises TurnError.
        """
        tags = {"X-AgentKV-Job": job_id, "X-AgentKV-Last-Step": str(is_last_step).lower()}
        path = "/v1/completions"
        try:
            response = self._http.post(path, json=body, headers=tags, timeout=_TURN_TIMEOUT_S)
        except httpx.HTTPError as error:
            raise TurnError(f"the server did not answer: {error!r}") from error
        if not response.is_success:
            raise TurnError(f"HTTP {response.status_code}: {visible(response.text[:300])}")
        with _read(f"no reply with usage and token ids: {response.text[:300]}", TurnError):
            answer: dict[str, Any] = response.json()
            int(answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"])
            list(answer["choices"][0]["token_ids"])
            return answer

    def job(self, job_id: str) -> dict[str, Any]:
        """What the server says of the job; empty if it has no plugin, or knows no such job."""
        try:
            return self._api.job(job_id)
        except AgentKVServerError:
            return {}

    def release(self, job_id: str) -> None:
        """Free the job's pinned blocks, if the server has the plugin and knows the job."""
        with suppress(AgentKVServerError):
            self._api.release(job_id)

    def silence(self) -> str | None:
        """Why nothing listens at the address, None if something does: an overloaded server does."""
        url = urlsplit(self.root_url)
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            with socket.create_connection((url.hostname or "", port), timeout=_CONNECT_TIMEOUT_S):
                return None
        except OSError as error:
            return f"the server at {self.root_url} is gone: {error}"

    def _info(self) -> dict[str, Any] | None:
        try:
            info = self._api.info()
        except StatusError as error:
            if error.status < 500:
                return None
            raise
        if "policy" not in info:
            raise AgentKVServerError(
                f"{self.root_url}/v1/agentkv/info names no policy: {info}"[:300]
            )
        return info

    def _page(self) -> str:
        return self._request("GET", "/metrics", hint="is this a vLLM server?").text

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, hint: str = ""
    ) -> httpx.Response:
        """The answer, of any status if there is no hint on what an HTTP error may mean."""
        try:
            answer = self._http.request(method, path, json=body)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise AgentKVServerError(
                f"{self.root_url}{path}: no answer ({type(error).__name__}: {error}): is the "
                "server running, and is the URL right?"
            ) from error
        if hint and not answer.is_success:
            seen = f"HTTP {answer.status_code} {shown(answer, answer.content)}"
            raise AgentKVServerError(f"{answer.url}: {seen}: {hint}")
        return answer


@contextmanager
def _read(failure: str, error_type: type[AgentKVError] = AgentKVServerError) -> Iterator[None]:
    """Raise `failure` if what the block reads is not in the answer, or not of its type."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise error_type(visible(failure)) from error


def preempted_between(before: int | None, after: int | None) -> int | None:
    """Requests preempted between two readings of `preemptions`; None if one of them lacks it."""
    return None if before is None or after is None else after - before


def parse_snapshot(page: str) -> Snapshot:
    """Parse a page of `/metrics`; AgentKVServerError if it lacks the KV cache's usage."""
    samples = _samples(page)
    usage = samples["vllm:kv_cache_usage_perc"]
    if not usage:
        raise AgentKVServerError(
            "/metrics has no vllm:kv_cache_usage_perc: is this a vLLM server, and does it run"
            " without --disable-log-stats?"
        )

    def total(name: str) -> int:
        return int(sum(value for _, value in samples.get(name, ())))

    return Snapshot(
        usage_by_engine={labels.get("engine", "0"): value for labels, value in usage},
        num_finished=total("vllm:request_success_total"),
        cached_tokens=total("vllm:prefix_cache_hits_total"),
    )


def parse_block_pool(page: str) -> BlockPool:
    """The pool as vLLM's `cache_config_info` states it; AgentKVServerError if it does not."""
    for labels, _ in _samples(page)["vllm:cache_config_info"]:
        with suppress(KeyError, ValueError):
            return BlockPool(int(labels["block_size"]), int(labels["num_gpu_blocks"]) - 1)
    raise AgentKVServerError("/metrics does not tell block size and number of blocks")


def _samples(page: str) -> defaultdict[str, list[tuple[Mapping[str, str], float]]]:
    found: defaultdict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
    try:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                found[sample.name].append((sample.labels, sample.value))
    except ValueError as error:
        raise AgentKVServerError(f"/metrics is not Prometheus text: {error}") from error
    return found
