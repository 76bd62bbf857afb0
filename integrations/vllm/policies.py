"""Which class is behind each name of `--scheduling-policy`."""

from __future__ import annotations

from .context_serve import ContextServePolicy
from .continuum import ContinuumPolicy
from .settings import Settings

POLICY_CLASSES: dict[str, type[ContinuumPolicy]] = {
    "continuum": ContinuumPolicy,
    "context_serve": ContextServePolicy,
}


def make_policy(settings: Settings) -> ContinuumPolicy:
    """The policy that the settings name."""
    return POLICY_CLASSES[settings.policy](settings)
