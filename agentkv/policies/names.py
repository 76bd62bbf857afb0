"""The shipped policies, and those that are found by the name of an entry point, module or file.

Called wherever a policy is named: by flags, environment variables, settings and tables.
"""

from __future__ import annotations

from agentkv.named_classes import NamedClasses

from .agentkv import AgentKVPolicy
from .base import Policy
from .context_serve import ContextServePolicy
from .continuum import ContinuumPolicy
from .settings import Settings

STOCK_POLICIES = ("fcfs", "priority")
"""vLLM's own policies, under which a server has no agentkv routes."""
SHIPPED: dict[str, type[Policy]] = {
    "continuum": ContinuumPolicy,
    "context_serve": ContextServePolicy,
    "agentkv": AgentKVPolicy,
}
"""Name -> class of the policies that agentkv brings."""

_CLASSES = NamedClasses("policy", Policy, "agentkv.policies", tuple(SHIPPED))


def policy_names() -> list[str]:
    """Names of the shipped policies, then of those that installed packages offer."""
    return _CLASSES.names()


def is_policy_name(name: str) -> bool:
    """True if the name may be one of ours: known, or spelled as a class in a module or file."""
    return _CLASSES.may_be(name)


def load_policy(name: str) -> type[Policy]:
    """The class behind a name.

    Raises InputError for a name that leads to no policy; errors of the policy's own module are
    raised as InputError too, with the original as its cause.
    """
    return SHIPPED.get(name) or _CLASSES.load(name)


def make_policy(settings: Settings, pool_tokens: int) -> Policy:
    """The policy that the settings name, for a KV pool of `pool_tokens`."""
    return load_policy(settings.policy)(settings, pool_tokens)
