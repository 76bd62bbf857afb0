"""Reads the plugin's settings from `--additional-config '{"agentkv": {...}}'`."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from agentkv.errors import InputError, SettingsError
from agentkv.policies.names import load_policy
from agentkv.policies.settings import Settings

CONFIG_KEY = "agentkv"
"""Key of the settings inside vLLM's `--additional-config`."""


def read_settings(given: object, *, policy: str) -> Settings:
    """Validate the object under "agentkv" in vLLM's additional config.

    The settings are those of the policy's class. Raises SettingsError, which names each wrong key,
    the value seen and what is allowed; InputError if there is no such policy.
    """
    kind = load_policy(policy).settings_class
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise SettingsError(
            f"--additional-config: {CONFIG_KEY!r} must hold a JSON object, "
            f"got {type(given).__name__} {given!r:.80}"
        )
    try:
        return kind.model_validate({**given, "policy": policy})
    except ValidationError as error:
        raise SettingsError(_describe(error, kind)) from None


def _describe(error: ValidationError, kind: type[Settings]) -> str:
    lines = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            valid = ", ".join(name for name in kind.model_fields if name != "policy")
            lines.append(f"unknown key {key!r}; valid keys: {valid}")
        elif isinstance(cause := problem.get("ctx", {}).get("error"), InputError):
            lines.append(str(cause))  # which names the key and what was seen
        else:
            seen = repr(problem["input"])[:80]
            lines.append(f"{key!r}: {problem['msg']}, got {seen}")
    return f"--additional-config, under {CONFIG_KEY!r}: " + "; ".join(lines)
