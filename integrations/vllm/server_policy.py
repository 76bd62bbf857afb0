"""Reads from vLLM's FastAPI application which of our policies it serves, and its API keys.

Called by the middleware and the stat logger of an API server process. Under another policy the
answer is None, and the rest of the plugin does nothing.
"""

from __future__ import annotations

from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.datastructures import Headers

from agentkv.policies.names import is_policy_name

from .settings import CONFIG_KEY


class TokenVerifier(Protocol):
    """The method of vLLM's AuthenticationMiddleware that we call."""

    def verify_token(self, headers: Headers) -> bool:
        """Return True if the headers carry one of the server's API keys."""
        ...


def policy_of(vllm_config: object) -> str | None:
    """Return our policy's name as noted in the additional config, or None under other policies."""
    additional = getattr(vllm_config, "additional_config", None)
    settings = additional.get(CONFIG_KEY) if isinstance(additional, dict) else None
    policy = settings.get("policy") if isinstance(settings, dict) else None
    return policy if isinstance(policy, str) and is_policy_name(policy) else None


def served_policy(app: Starlette) -> str | None:
    """Return the policy of the engine behind this application, or None."""
    engine_client: Any = getattr(app.state, "engine_client", None)
    if engine_client is None:
        return None
    return policy_of(getattr(app.state, "vllm_config", None))


def find_token_verifier(app: Starlette) -> TokenVerifier | None:
    """Return a second instance of the server's own API-key check, or None if it asks for no key.

    Source: vllm/entrypoints/serve/middleware/register.py (0.31 to 0.33) adds it by this name.
    """
    for entry in app.user_middleware:
        if getattr(entry.cls, "__name__", "") == "AuthenticationMiddleware":
            verifier: Any = entry.cls(app, *entry.args, **entry.kwargs)
            return verifier if hasattr(verifier, "verify_token") else None
    return None
