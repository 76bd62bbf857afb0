"""What an API server process knows of itself: the policy at work, and its API keys.

Reads only what vLLM leaves on its FastAPI application; under any other policy the answer is None
and the rest of the plugin stays out of the way.
"""

from __future__ import annotations

from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.datastructures import Headers

from .settings import CONFIG_KEY, POLICIES


class TokenVerifier(Protocol):
    """The part of vLLM's AuthenticationMiddleware that is used here."""

    def verify_token(self, headers: Headers) -> bool:
        """True if the headers carry one of the server's API keys."""
        ...


def policy_of(vllm_config: object) -> str | None:
    """Our policy's name as the plugin noted it in the additional config; None under another."""
    additional = getattr(vllm_config, "additional_config", None)
    settings = additional.get(CONFIG_KEY) if isinstance(additional, dict) else None
    policy = settings.get("policy") if isinstance(settings, dict) else None
    return policy if policy in POLICIES else None


def served_policy(app: Starlette) -> str | None:
    """The policy of the engine behind this application; None without an engine, too."""
    engine_client: Any = getattr(app.state, "engine_client", None)
    if engine_client is None:
        return None
    return policy_of(getattr(app.state, "vllm_config", None))


def find_token_verifier(app: Starlette) -> TokenVerifier | None:
    """A second instance of the server's own API-key check; None where it asks for no key.

    Source: vllm/entrypoints/serve/middleware/register.py (0.31 to 0.33) adds it by this name.
    """
    for entry in app.user_middleware:
        if getattr(entry.cls, "__name__", "") == "AuthenticationMiddleware":
            verifier: Any = entry.cls(app, *entry.args, **entry.kwargs)
            return verifier if hasattr(verifier, "verify_token") else None
    return None
