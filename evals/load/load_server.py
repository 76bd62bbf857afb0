"""The server under load, apart from its turns: what it is, its tokenizer, its counters.

Works with any OpenAI-compatible server; what only vLLM or the agentkv plugin has is None elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

from agentkv.client.transport import ServerAPI, StatusError
from agentkv.errors import AgentKVError, AgentKVServerError

_TIMEOUT_S = 30.0  # an engine in the middle of a long prefill answers late
_PREFIXES = ("vllm:", "agentkv:")
_NOT_SUMMED = ("_bucket", "_created", "_info")
PREEMPTIONS = "vllm:num_preemptions_total"


class LoadServerError(AgentKVError):
    """The server cannot be reached, or lacks what the load needs."""


@dataclass(frozen=True, slots=True)
class LoadServerFacts:
    """What stays the same during a run; `info` is the plugin's, None without the agentkv routes."""

    model: str
    max_context_tokens: int | None
    vllm_version: str | None
    info: Mapping[str, Any] | None


class LoadServer:
    """A server behind `base_url` (with or without `/v1`); a context manager."""

    def __init__(self, base_url: str, *, api_key: str | None = None) -> None:
        self._api = ServerAPI(base_url, api_key=api_key)
        self.root_url = self._api.root_url
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        try:
            self._http = httpx.Client(base_url=self.root_url, headers=headers, timeout=_TIMEOUT_S)
        except httpx.InvalidURL as error:
            raise LoadServerError(f"{base_url}: not a URL: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._http.close()

    def facts(self, model: str | None) -> LoadServerFacts:
        """Asks once; `model` None takes the first offered. Raises LoadServerError if none is."""
        offered = self._models()
        names = [str(entry.get("id")) for entry in offered]
        if model is not None and model not in names:
            raise LoadServerError(
                f"{self.root_url} does not serve {model!r}; it serves {', '.join(names)}"
            )
        chosen = offered[0 if model is None else names.index(model)]
        max_context_tokens = chosen.get("max_model_len")
        version = self._optional("GET", "/version")
        return LoadServerFacts(
            model=str(chosen["id"]),
            max_context_tokens=max_context_tokens if isinstance(max_context_tokens, int) else None,
            vllm_version=None if version is None else _version_in(version),
            info=self._info(),
        )

    def tokenize(self, model: str, texts: Sequence[str]) -> list[list[int]]:
        """Each text's tokens, without special ones, from vLLM's `/tokenize`."""
        token_ids = []
        for text in texts:
            body = {"model": model, "prompt": text, "add_special_tokens": False}
            answer = self._optional("POST", "/tokenize", body)
            if answer is None:
                raise LoadServerError(
                    f"{self.root_url} has no /tokenize, which exact prompt lengths need: "
                    "use --mode live, or a vLLM server"
                )
            try:
                token_ids.append([int(token) for token in answer.json()["tokens"]])
            except (LookupError, TypeError, ValueError) as error:
                raise LoadServerError(
                    f"{answer.url} gives no tokens: {answer.text[:200]}: use --mode live, or a "
                    "vLLM server"
                ) from error
        return token_ids

    def counters(self) -> dict[str, Any]:
        """The plugin's totals, and `/metrics` summed over labels; empty where there are none."""
        page = self._optional("GET", "/metrics")
        found: dict[str, Any] = {"metrics": {} if page is None else metric_totals(page.text)}
        try:
            found["agentkv"] = self._api.stats()
        except AgentKVServerError:  # a stock policy, or not vLLM at all
            found["agentkv"] = None
        return found

    def timestamps(self) -> dict[str, Any] | None:
        """The plugin's record of each job; None where there is none."""
        try:
            return self._api.timestamps()
        except AgentKVServerError:
            return None

    def _models(self) -> list[dict[str, Any]]:
        answer = self._request("GET", "/v1/models")
        if not answer.is_success:
            raise LoadServerError(
                f"{answer.url}: HTTP {answer.status_code} {answer.text[:200]}: is this the base "
                "URL of an OpenAI-compatible server, and the API key right (--api-key)?"
            )
        try:
            models = answer.json()["data"]
            return [entry for entry in models if entry["id"]] or _no_model(self.root_url)
        except (LookupError, TypeError, ValueError) as error:
            raise LoadServerError(f"{answer.url} names no model: {answer.text[:200]}") from error

    def _info(self) -> dict[str, Any] | None:
        try:
            info = self._api.info()
        except StatusError as error:
            if error.status < 500:
                return None
            raise LoadServerError(str(error)) from error
        except AgentKVServerError as error:
            raise LoadServerError(str(error)) from error
        if "policy" not in info:
            raise LoadServerError(f"{self.root_url}/v1/agentkv/info names no policy: {info}"[:300])
        return info

    def _optional(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> httpx.Response | None:
        """None for an answer that is no success: the server does not have this path."""
        answer = self._request(method, path, body)
        return answer if answer.is_success else None

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> httpx.Response:
        try:
            return self._http.request(method, path, json=body)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise LoadServerError(
                f"{self.root_url}{path}: no answer ({type(error).__name__}: {error}): is the "
                "server running, and is --base-url right?"
            ) from error


def _version_in(answer: httpx.Response) -> str | None:
    """vLLM's version; None in the answer of something else."""
    try:
        version = answer.json().get("version")
    except (AttributeError, ValueError):
        return None
    return version if isinstance(version, str) else None


def metric_totals(page: str) -> dict[str, float]:
    """Counters and gauges of vLLM and agentkv, and sums and counts of histograms, by name.

    A page that is no Prometheus text gives nothing: the counters are beside the measurement.
    """
    totals: defaultdict[str, float] = defaultdict(float)
    try:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name.startswith(_PREFIXES) and not sample.name.endswith(_NOT_SUMMED):
                    totals[sample.name] += sample.value
    except ValueError:
        return {}
    return dict(totals)


def preemptions_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> int | None:
    """Requests preempted between two readings of `counters`; None where the server tells none."""
    first, second = (reading.get("metrics", {}).get(PREEMPTIONS) for reading in (before, after))
    return None if first is None or second is None else int(second - first)


def _no_model(root_url: str) -> list[dict[str, Any]]:
    raise LoadServerError(f"{root_url} serves no model")
