"""Tells by its version, and by the names in it, whether agentkv supports a vLLM."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable

OLDEST, NEWEST = (0, 31), (0, 34)
"""Supported vLLM: OLDEST <= version < NEWEST."""


def version_problem(version: str) -> str | None:
    """Return why this vLLM version is refused or doubtful, or None if it is supported."""
    found = _numbers_of(version)
    if found is None or OLDEST <= found < NEWEST:
        return None
    supported = f">= {OLDEST[0]}.{OLDEST[1]}, < {NEWEST[0]}.{NEWEST[1]}"
    age = "older" if found < OLDEST else "newer"
    return f"vLLM {version} is {age} than what agentkv supports ({supported})"


def is_too_old(version: str) -> bool:
    """Return True for a refused version; a version that is too new gets a warning only."""
    found = _numbers_of(version)
    return found is not None and found < OLDEST


def missing_names(contract: Iterable[tuple[str, str]]) -> list[str]:
    """Return the names, of pairs (owner, attribute), that the installed vLLM does not have."""
    missing = []
    for owner, attribute in contract:
        module, _, name = owner.rpartition(".")
        try:
            found = hasattr(getattr(importlib.import_module(module), name), attribute)
        except (ImportError, AttributeError):
            found = False
        if not found:
            missing.append(f"{owner}.{attribute}")
    return missing


def _numbers_of(version: str) -> tuple[int, int] | None:
    """Return major and minor, or None for a development build, which the contract check decides."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return None if numbers is None else (int(numbers[1]), int(numbers[2]))
