"""Which class is behind each name of `--scheduling-policy`."""

from __future__ import annotations

from .agentkv_policy import AgentKVPolicy
from .context_serve import ContextServePolicy
from .continuum import ContinuumPolicy
from .policy import Policy
from .settings import Settings

POLICY_CLASSES: dict[str, type[Policy]] = {
    "continuum": ContinuumPolicy,
    "context_serve": ContextServePolicy,
    "agentkv": AgentKVPolicy,
}


def make_policy(settings: Settings, pool_tokens: int) -> Policy:
    """The policy that the settings name, for a KV pool of so many tokens."""
    return POLICY_CLASSES[settings.policy](settings, pool_tokens)
