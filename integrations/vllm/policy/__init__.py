"""Pure rules of each policy: who goes first, who is pinned and for how long, who yields memory."""

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
"""The class behind each name of `--scheduling-policy`."""


def make_policy(settings: Settings, pool_tokens: int) -> Policy:
    """The policy that the settings name, for a KV pool of `pool_tokens`."""
    return POLICY_CLASSES[settings.policy](settings, pool_tokens)
