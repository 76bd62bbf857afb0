"""Says whose a request is: by its API key, the header of a trusted proxy, or its address.

The middleware and the routes ask in an API server process. Neither key, header nor address leaves
it: the engine gets a hash of them.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import multiprocessing
import os
import secrets
from collections.abc import Mapping
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.types import Scope

from agentkv.errors import SettingsError

ADMIN_KEY_VARIABLE = "AGENTKV_ADMIN_KEY"
"""Environment variable with the API key that sees the jobs of all clients."""
CLIENTS_VARIABLE = "AGENTKV_CLIENTS"
"""Environment variable with names of clients and the API keys of each, as a JSON object."""


class TokenVerifier(Protocol):
    """The method of vLLM's AuthenticationMiddleware that we call."""

    def verify_token(self, headers: Headers) -> bool:
        """Return True if the headers carry one of the server's API keys."""
        ...


def find_token_verifier(app: Starlette) -> TokenVerifier | None:
    """Return a second instance of the server's own API-key check, or None if it asks for no key.

    Source: vllm/entrypoints/serve/middleware/register.py (0.31 to 0.33) adds it by this name.
    """
    for entry in app.user_middleware:
        if getattr(entry.cls, "__name__", "") == "AuthenticationMiddleware":
            verifier: Any = entry.cls(app, *entry.args, **entry.kwargs)
            return verifier if hasattr(verifier, "verify_token") else None
    return None


def names_by_key() -> dict[str, str]:
    """Return the name of each API key that AGENTKV_CLIENTS names; of several a client may have.

    Raises SettingsError, which says nothing of any key.
    """
    text = os.environ.get(CLIENTS_VARIABLE)
    if not text:
        return {}
    expected = 'a JSON object is expected, such as {"alice": "KEY", "bob": ["KEY", "KEY"]}'
    try:
        given = json.loads(text)
    except ValueError:
        raise SettingsError(f"{CLIENTS_VARIABLE}: malformed JSON; {expected}") from None
    if not isinstance(given, dict):
        raise SettingsError(f"{CLIENTS_VARIABLE}: got a {type(given).__name__}; {expected}")
    names: dict[str, str] = {}
    for name, keys in given.items():
        keys = [keys] if isinstance(keys, str) else keys
        if not isinstance(keys, list) or not all(key and isinstance(key, str) for key in keys):
            raise SettingsError(f"{CLIENTS_VARIABLE}: {name!r} has no key or list of keys")
        for key in keys:
            if names.setdefault(key, name) != name:
                raise SettingsError(
                    f"{CLIENTS_VARIABLE}: {names[key]!r} and {name!r} have the same key: give each "
                    "its own"
                )
    return names


class Clients:
    """Tells the clients of one server apart.

    `verifier` is the server's key check, None without keys; `settings` are the plugin's, which have
    been checked.
    """

    def __init__(self, verifier: TokenVerifier | None, settings: Mapping[str, Any]) -> None:
        self.verifier = verifier
        header = settings.get("client_header")
        self._header = None if header is None else header.lower().encode()
        self._names = names_by_key()
        self._labels = {_hash(f"name {name}"): name for name in self._names.values()}

    def of(self, scope: Scope) -> str:
        """Return the client of a request as the engine knows it, 16 hexadecimal digits: by its API
        key or name, what its proxy says, or its address.

        The address counts where the server asks for no key, or lets a request pass without one.
        """
        headers = Headers(scope=scope)
        name = self._named_by_proxy(scope)
        if self.verifier is not None and self.verifier.verify_token(headers):
            _, _, key = headers["Authorization"].partition(" ")
            name = self._names.get(key)
            if name is None:
                return _hash(f"key {key}")
        if name is None:
            host, _ = scope.get("client") or ("", 0)
            return _hash(f"address {_network_of(host)}")
        return _hash(f"name {name}")

    def label(self, client: str) -> str:
        """Return the name of a client of the engine, if the environment has one."""
        return self._labels.get(client, client)

    def sees_all_jobs(self, scope: Scope) -> bool:
        """Return True for the admin key; where the server asks for no key, for everybody but the
        clients that a proxy names."""
        if self.verifier is None:
            return self._named_by_proxy(scope) is None
        _, _, key = Headers(scope=scope).get("Authorization", "").partition(" ")
        admin_key = os.environ.get(ADMIN_KEY_VARIABLE, "")
        return admin_key != "" and secrets.compare_digest(key.encode(), admin_key.encode())

    def _named_by_proxy(self, scope: Scope) -> str | None:
        if self._header is None:
            return None
        values = [value for name, value in scope["headers"] if name == self._header]
        return values[-1].decode("latin-1") if values else None


def _hash(identity: str) -> str:
    """Hash who a client is with a secret that Python gives all processes of one server (`authkey`).

    So it tells neither the key nor the address, and differs after a restart.
    """
    secret = bytes(multiprocessing.current_process().authkey)
    return hashlib.blake2b(identity.encode(), key=secret[:64], digest_size=8).hexdigest()


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
