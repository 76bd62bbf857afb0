"""Which server litellm sends a model's calls to, and one such call as a turn of a job."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import litellm

from agentkv.client.job import Job
from agentkv.client.server import KnownServer, known_server
from agentkv.client.tagged_call import TaggedCall

logger = logging.getLogger(__name__)

_URL_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "openai": ("OPENAI_BASE_URL", "OPENAI_API_BASE"),
    "hosted_vllm": ("HOSTED_VLLM_API_BASE",),
    "litellm_proxy": ("LITELLM_PROXY_API_BASE",),
}
_KEY_VARIABLES: Mapping[str, str] = {
    "openai": "OPENAI_API_KEY",
    "hosted_vllm": "HOSTED_VLLM_API_KEY",
    "litellm_proxy": "LITELLM_PROXY_API_KEY",
}
"""Where litellm looks for what a call does not name, by provider.
Source: litellm/main.py, and chat/transformation.py of hosted_vllm and litellm_proxy (1.105)."""

_warned_models: set[str] = set()


@dataclass(frozen=True, slots=True)
class BodyExtras:
    """litellm's `extra_body` in the shape in which a tagged call looks for the SDK's options."""

    extra_json: Mapping[str, Any] = field(default_factory=dict)

    def model_copy(self, *, update: Mapping[str, Any]) -> Self:
        """The same with other extras."""
        return type(self)(**update)


def tagged_call(
    job: Job[Any], model_name: str, call_options: Mapping[str, Any], server_url: str | None
) -> TaggedCall | None:
    """The turn of a job that a litellm call is to be, its server asked for the plugin.

    None where the call names no server that could have it, and where the caller tags by hand.
    Waits for a server not met before, 3 s or so at most.
    """
    extras = call_options.get("extra_body") or {}
    if "job_id" in extras:
        return None
    server = _server_of(model_name, call_options, server_url)
    if server is None:
        if model_name not in _warned_models:
            _warned_models.add(model_name)
            logger.warning(
                "agentkv: %s names no server of its own (`api_base`, or `agentkv_server` for one "
                "behind a gateway). Calls go out untouched.",
                model_name,
            )
        return None
    call = TaggedCall(job, server, BodyExtras(extras))
    server.ask()
    call.check_server()
    return call


def _server_of(
    model_name: str, call_options: Mapping[str, Any], server_url: str | None
) -> KnownServer | None:
    """The server as litellm finds it; None for a provider's own endpoint."""
    provider = call_options.get("custom_llm_provider") or _provider(model_name)
    url = server_url or call_options.get("api_base") or call_options.get("base_url")
    for variable in () if url else _URL_VARIABLES.get(provider, ()):
        url = url or litellm.get_secret_str(variable)
    if not url:
        return None
    key = call_options.get("api_key")
    if key is None and provider in _KEY_VARIABLES:
        key = litellm.get_secret_str(_KEY_VARIABLES[provider])
    authorization = {} if key is None else {"Authorization": f"Bearer {key}"}
    server = known_server(str(url))
    headers = {**authorization, **(call_options.get("extra_headers") or {})}
    server.reach_by(None, headers)
    return server


def _provider(model_name: str) -> str:
    """What stands before the first slash; litellm takes a bare name for OpenAI's most often."""
    return model_name.partition("/")[0] if "/" in model_name else "openai"
