"""Reads from vLLM's configuration which of our policies a server runs, and how.

Called by the API room and the stat logger of an API server process. Under another policy the
answer is None, and the rest of the plugin does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentkv.errors import SettingsError
from agentkv.policies.names import CONFIG_KEY, is_policy_name

FRONT_END_KEY = "front_end_mib"
FRONT_END_MIB, MAX_MIB = 64.0, 65_536
"""What encoded conversations may take in each API server, under our policies."""


def settings_of(vllm_config: object) -> Mapping[str, Any] | None:
    """Return our settings as noted in the additional config, or None under other policies."""
    additional = getattr(vllm_config, "additional_config", None)
    settings = additional.get(CONFIG_KEY) if isinstance(additional, dict) else None
    if not isinstance(settings, dict):
        return None
    policy = settings.get("policy")
    return settings if isinstance(policy, str) and is_policy_name(policy) else None


def policy_of(vllm_config: object) -> str | None:
    """Return our policy's name, or None under other policies."""
    settings = settings_of(vllm_config)
    return None if settings is None else settings["policy"]


def front_end_mib(vllm_config: object) -> float:
    """Return how many MiB of encoded conversations an API server may keep; 0: all as in stock.

    Under stock policies only where the additional config, and so `--agentkv-front-end`, says it.
    Raises SettingsError unless it is a number of MiB.
    """
    additional = getattr(vllm_config, "additional_config", None)
    settings = additional.get(CONFIG_KEY) if isinstance(additional, dict) else None
    default = 0.0 if settings_of(vllm_config) is None else FRONT_END_MIB
    mib = settings.get(FRONT_END_KEY, default) if isinstance(settings, dict) else default
    if isinstance(mib, bool) or not isinstance(mib, int | float) or not 0 <= mib <= MAX_MIB:
        raise SettingsError(f"{FRONT_END_KEY!r}: got {mib!r}, allowed are 0 to {MAX_MIB} MiB")
    return float(mib)
