"""What a run is asked to do: which instances, which policy and server, where commands run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .environments import CONTAINERS
from .instances import Instance, fingerprint

MODEL_CLASS = "agentkv.agents.mini_swe.AgentKVModel"
TEXT_MODEL_CLASS = "agentkv.agents.mini_swe.AgentKVTextModel"
AGENT_CLASS = "agentkv.agents.mini_swe.AgentKVAgent"
IMAGE_BYTES = int(0.48 * 2**30)
"""Disk that an official image takes on average, once unpacked.

Source: 240 GiB for the 500 of Verified, of which more than 100 GiB are downloaded
(logicstar.ai, "How We Made SWE-Bench 50x Smaller").
"""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run under one policy; either `num_workers` or `jps` says when instances start.

    policy: None is whatever the server at `base_url` runs.
    base_url: None starts a server of our own, with `server_flags`.
    model: None is the server's own choice, our demo model if we start it.
    configs: mini-swe-agent's own configuration, files or `key=value`, over its SWE-bench default.
    """

    source: str
    instances: tuple[Instance, ...]
    out: Path
    policy: str | None = None
    model: str | None = None
    base_url: str | None = None
    api_key: str | None = None
    server_flags: tuple[str, ...] = ()
    num_workers: int | None = 1
    jps: float | None = None
    seed: int = 0
    environment: str = "docker"
    repositories: Path | None = None
    step_limit: int | None = None
    is_text: bool = False
    configs: tuple[str, ...] = ()

    @property
    def instance_ids(self) -> list[str]:
        return [one.instance_id for one in self.instances]

    @property
    def images(self) -> list[str]:
        """Those that are needed, each once; none where no container is."""
        if self.environment not in CONTAINERS:
            return []
        return list(dict.fromkeys(one.image for one in self.instances if one.image))

    def settings(self) -> dict[str, Any]:
        """What a run that is gone on with must have in common with its beginning."""
        return {
            "dataset_sha256": fingerprint(self.instances),
            "instance_ids": self.instance_ids,
            "policy": self.policy,
            "model": self.model,
            "server_flags": list(self.server_flags),
            "workers": self.num_workers,
            "jps": self.jps,
            "seed": self.seed,
            "environment": self.environment,
            "step_limit": self.step_limit,
            "text": self.is_text,
            "config": list(self.configs),
        }


def agent_config(plan: RunPlan) -> dict[str, Any]:
    """mini-swe-agent's configuration for SWE-bench, with the plan's in it.

    Raises FileNotFoundError or ValueError for a configuration that is none.
    """
    from minisweagent.config import get_config_from_spec
    from minisweagent.utils.serialize import recursive_merge

    builtin = "swebench_backticks.yaml" if plan.is_text else "swebench.yaml"
    specs = [f"benchmarks/{builtin}", *plan.configs]
    ours: dict[str, Any] = {
        "model": {
            "model_class": TEXT_MODEL_CLASS if plan.is_text else MODEL_CLASS,
            "cost_tracking": "ignore_errors",  # local models have no price
        },
        "agent": {"agent_class": AGENT_CLASS},
    }
    if plan.step_limit is not None:
        ours["agent"]["step_limit"] = plan.step_limit
    merged: dict[str, Any] = recursive_merge(*(get_config_from_spec(spec) for spec in specs), ours)
    return merged


def import_classes(config: Mapping[str, Any]) -> None:
    """Import what agents are made of, once: two threads that import litellm can lock each other."""
    from minisweagent.agents import get_agent_class
    from minisweagent.models import get_model_class
    from minisweagent.run.benchmarks import swebench

    assert swebench.get_sb_environment
    get_agent_class(config["agent"]["agent_class"])
    get_model_class("", config["model"]["model_class"])


def model_config(
    config: Mapping[str, Any], *, model: str, base_url: str, api_key: str | None
) -> dict[str, Any]:
    """The model's part of the configuration, with the server's address in it."""
    given = dict(config.get("model", {}))
    where = {"api_base": base_url, "api_key": api_key or "none"}
    return given | {
        "model_name": f"openai/{model}",
        "model_kwargs": {**given.get("model_kwargs", {}), **where},
    }
