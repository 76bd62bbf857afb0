"""What a run says of the conditions it ran under, wherever in its rows that stands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..load.outcomes import RunOutcome
from ..simulation.catalog import GPU_MEMORY_UTILIZATION

LOADS = {"jps": "jobs per second", "concurrency": "jobs at once"}
"""What can be swept, with the label of its axis."""
LIMITS = {
    "num_gpus": "{} GPUs",
    "turns": "{} turns a job at most",
    "trace": "trace {}",
    "token_scale": "tokens x {}",
    "max_context_tokens": "contexts to {} tokens",
    "max_num_seqs": "{} turns at once",
    "max_num_batched_tokens": "batches to {} tokens",
    "max_model_len": "server takes {} tokens",
    "block_size": "blocks of {} tokens",
    "gpu_memory_utilization": "{} of the GPU's memory",
    "arrivals": "arrivals {}",
    "mode": "{}",
}
"""Flags that change the jobs or the machine, in words."""
_DEFAULTS = {
    "num_gpus": 1,
    "token_scale": 1.0,
    "tools": "recorded",
    "gpu_memory_utilization": GPU_MEMORY_UTILIZATION,
    "arrivals": "poisson",
    "mode": "replay",
}
_BLOCK_FLAG = "--num-gpu-blocks-override"


@dataclass(frozen=True, slots=True)
class Setting:
    """What the runs of one figure have in common; None where the rows do not say."""

    gpu: str
    model: str | None
    workload: str | None
    tools: str | None
    load_kind: str | None
    """A key of LOADS."""
    blocks: str | None
    """Blocks of the KV pool as asked for by flag; None: as many as the memory holds."""
    is_simulated: bool
    limits: tuple[tuple[str, str], ...]
    """Keys of LIMITS with their values."""


def has_endless_pool(policy: str) -> bool:
    """Whether a policy brings its own pool, so that its runs belong to those on any."""
    return policy.endswith("@infinite")


def setting_of(outcome: RunOutcome) -> Setting:
    """The setting of a run; its policy may ask for a pool without limit, and has no blocks then."""
    metadata = outcome.metadata
    config = metadata.get("config")
    flags: Sequence[Any] = [outcome.workload, config]
    limits = {name: _name(_find(flags, name)) for name in LIMITS}
    return Setting(
        gpu=_name(_find([config, metadata], "gpu")) or "server",
        model=_name(_find([config, metadata], "model")),
        workload=_name(_find([outcome.workload], "name")),
        tools=_name(_find(flags, "tools")),
        load_kind=next((kind for kind in LOADS if outcome.workload.get(kind) is not None), None),
        blocks=None if has_endless_pool(outcome.policy) else _blocks(config),
        is_simulated=bool(metadata.get("is_simulated")),
        limits=tuple((name, value) for name, value in limits.items() if value is not None),
    )


def pool_of(outcome: RunOutcome) -> str | None:
    """Blocks of the KV pool: as asked for, else as the server or the simulator counted them."""
    if has_endless_pool(outcome.policy):
        return None
    metadata, server = outcome.metadata, outcome.server
    facts = [metadata, server, metadata.get("server_info"), server.get("before")]
    return _blocks(metadata.get("config")) or _name(_find(facts, "num_blocks"))


def _blocks(config: Any) -> str | None:
    """The simulator's flag, compare's flag, or vLLM's among the flags of the server."""
    for name in ("blocks", "num_gpu_blocks_override"):
        value = _name(_find([config], name))
        if value is not None:
            return value
    flags = config.get("server_flags") if isinstance(config, Mapping) else None
    if isinstance(flags, list) and _BLOCK_FLAG in flags[:-1]:
        return str(flags[flags.index(_BLOCK_FLAG) + 1])
    return None


def _find(places: Sequence[Any], name: str) -> str | int | float | None:
    """What the first place that knows the name says; None for a default, which says nothing."""
    for place in places:
        value = place.get(name) if isinstance(place, Mapping) else None
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return None if value == _DEFAULTS.get(name) else value
    return None


def _name(value: str | int | float | None) -> str | None:
    """A value as text; of a file (a calibrated profile, a trace, a model's folder) its own name."""
    if not isinstance(value, str):
        return None if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return Path(value).stem if "/" in value or value.endswith(".json") else value


def slug(setting: Setting, others: Sequence[Setting]) -> str:
    """A name for files: the GPU, and what sets this setting apart from others of that GPU."""
    alike = [other for other in others if other.gpu == setting.gpu]
    words = [setting.gpu]
    for field in fields(Setting):
        if len({getattr(other, field.name) for other in alike}) > 1:
            words += _words(getattr(setting, field.name))
    return "_".join(re.sub(r"[^A-Za-z0-9.-]+", "-", word).strip("-.") or "none" for word in words)


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, bool):
        yield "simulated" if value else "measured"
    elif isinstance(value, tuple):
        yield from (f"{name}-{limit}" for name, limit in value)
    elif value is not None:
        yield str(value)
