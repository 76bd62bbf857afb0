"""Which class is behind each name of `--scheduling-policy`."""

from __future__ import annotations

from ..settings import Settings
from .agentkv import AgentKVPolicy
from .base import Policy
from .context_serve import ContextServePolicy
from .continuum import ContinuumPolicy

POLICY_CLASSES: dict[str, type[Policy]] = {
    "continuum": ContinuumPolicy,
    "context_serve": ContextServePolicy,
    "agentkv": AgentKVPolicy,
}


def make_policy(settings: Settings, pool_tokens: int) -> Policy:
    """The policy that the settings name, for a KV pool of so many tokens."""
    return POLICY_CLASSES[settings.policy](settings, pool_tokens)
