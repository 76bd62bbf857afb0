"""Reads from vLLM's configuration which of our policies a server runs, and how.

Called by the API room and the stat logger of an API server process. Under another policy the
answer is None, and the rest of the plugin does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentkv.policies.names import CONFIG_KEY, is_policy_name


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
