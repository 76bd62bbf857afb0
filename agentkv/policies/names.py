"""Finds the class of a policy by the name that a flag, an environment variable or a table gives.

A name is one of the shipped ones, that of an entry point of the group `agentkv.policies`,
`package.module:Class`, or `path/to/file.py:Class`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from agentkv.errors import InputError

from .agentkv import AgentKVPolicy
from .base import Policy
from .context_serve import ContextServePolicy
from .continuum import ContinuumPolicy
from .settings import Settings

SHIPPED: dict[str, type[Policy]] = {
    "continuum": ContinuumPolicy,
    "context_serve": ContextServePolicy,
    "agentkv": AgentKVPolicy,
}
"""Name -> class of the policies that agentkv brings."""

ENTRY_POINTS = "agentkv.policies"
"""Group of entry points under which packages offer policies by name."""


def policy_names() -> list[str]:
    """Names of the shipped policies, then of those that installed packages offer."""
    offered = sorted({point.name for point in entry_points(group=ENTRY_POINTS)} - SHIPPED.keys())
    return [*SHIPPED, *offered]


def is_policy_name(name: str) -> bool:
    """True if the name may be one of ours: known, or spelled as a class in a module or file."""
    return ":" in name or name in policy_names()


def absolute_name(name: str) -> str:
    """The name with the file's path made absolute, for processes that run elsewhere."""
    path, _, class_name = name.rpartition(":")
    return f"{Path(path).resolve()}:{class_name}" if path.endswith(".py") else name


def label_of(name: str) -> str:
    """The name for tables, figures and metrics: of a class in a file or module, the class's own."""
    return name.rpartition(":")[2]


def load_policy(name: str) -> type[Policy]:
    """The class behind a name.

    Raises InputError for a name that leads to no policy; errors of the policy's own module are
    raised as InputError too, with the original as its cause.
    """
    if name in SHIPPED:
        return SHIPPED[name]
    return _load(absolute_name(name))


def make_policy(settings: Settings, pool_tokens: int) -> Policy:
    """The policy that the settings name, for a KV pool of `pool_tokens`."""
    return load_policy(settings.policy)(settings, pool_tokens)


@cache
def _load(name: str) -> type[Policy]:
    for point in entry_points(group=ENTRY_POINTS):
        if point.name == name:
            name = point.value
            break
    module_name, _, class_name = name.rpartition(":")
    if not module_name:
        known = ", ".join(policy_names())
        raise InputError(
            f"policy: got {name!r}, allowed are {known}, FILE.py:CLASS and MODULE:CLASS"
        )
    module = _import(name, module_name)
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, Policy)):
        offered = ", ".join(
            key
            for key, value in vars(module).items()
            if isinstance(value, type)
            and issubclass(value, Policy)
            and value.__module__ == module.__name__
        )
        raise InputError(
            f"policy: got {name!r}: {class_name or 'nothing'} is not a subclass of "
            f"agentkv.policies.Policy; this module has {offered or 'none'}"
        )
    return found


def _import(name: str, module_name: str) -> ModuleType:
    try:
        if not module_name.endswith(".py"):
            return importlib.import_module(module_name)
        path = Path(module_name)
        spec = importlib.util.spec_from_file_location(f"agentkv_policy_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses and pydantic look their module up
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"policy: got {name!r}: {type(error).__name__}: {error}") from error
    return module
