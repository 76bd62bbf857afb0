"""Reads from vLLM's FastAPI application which of our policies it serves, and whose a request is.

Called by the API room and the stat logger of an API server process. Under another policy the
answer is None, and the rest of the plugin does nothing.
"""

from __future__ import annotations

import hashlib
import ipaddress
import multiprocessing
import os
import secrets
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.types import Scope

from agentkv.policies.names import is_policy_name

from .settings import CONFIG_KEY

ADMIN_KEY_VARIABLE = "AGENTKV_ADMIN_KEY"
"""Environment variable with the API key that sees the jobs of all clients."""


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


def client_name(scope: Scope, verifier: TokenVerifier | None) -> str:
    """Return 16 hexadecimal digits that stand for the client of a request: its API key or address.

    The address counts where the server asks for no key, or lets a request pass without one. The
    name is a hash with a secret that Python gives all processes of one server (`authkey`), so it
    tells neither the key nor the address, and differs after a restart.
    """
    headers = Headers(scope=scope)
    if verifier is not None and verifier.verify_token(headers):
        _, _, key = headers["Authorization"].partition(" ")
        identity = f"key {key}"
    else:
        host, _ = scope.get("client") or ("", 0)
        identity = f"address {_network_of(host)}"
    secret = bytes(multiprocessing.current_process().authkey)
    return hashlib.blake2b(identity.encode(), key=secret[:64], digest_size=8).hexdigest()


def sees_all_jobs(scope: Scope, verifier: TokenVerifier | None) -> bool:
    """Return True for the admin key, and for everybody where the server asks for no key."""
    if verifier is None:
        return True
    _, _, key = Headers(scope=scope).get("Authorization", "").partition(" ")
    admin_key = os.environ.get(ADMIN_KEY_VARIABLE, "")
    return admin_key != "" and secrets.compare_digest(key.encode(), admin_key.encode())


def _network_of(host: str) -> str:
    """Return the address; of IPv6 the first 64 bits, since one client has all of the others."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
