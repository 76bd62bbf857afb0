"""What a run is: its conditions, mini-swe-agent's configuration, and what it would need.

`command` makes plans, `run` plays them. Nothing here starts anything.
"""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentkv.policies.names import server_policy

from .instances import CONTAINERS, Instance, SwebenchError, fingerprint

IMAGE_BYTES = int(0.48 * 2**30)
"""Disk that an official image takes on average, once unpacked.

Source: 240 GiB for the 500 of Verified, of which more than 100 GiB are downloaded
(logicstar.ai, "How We Made SWE-Bench 50x Smaller").
"""
_SETTINGS = (
    *("policy", "model", "workers", "jps", "seed", "environment", "step_limit", "is_text"),
    *("server_flags", "configs"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One run under one policy; either `workers` or `jps` says when instances start.

    policy: None accepts the policy of the server at `base_url`.
    base_url: None starts a server, with `server_flags`.
    model: None is the server's first model, or the demo model for a server started here.
    configs: mini-swe-agent's configuration, files or `key=value`, over its SWE-bench default.
    """

    source: str
    instances: list[Instance]
    out: Path
    policy: str | None = None
    model: str | None = None
    base_url: str | None = None
    api_key: str | None = None
    server_flags: list[str] = field(default_factory=list)
    workers: int | None = 1
    jps: float | None = None
    seed: int = 0
    environment: str = "docker"
    repositories: Path | None = None
    step_limit: int | None = None
    is_text: bool = False
    configs: list[str] = field(default_factory=list)

    def settings(self) -> dict[str, Any]:
        """Return what a resumed run must have in common with its beginning."""
        return {
            "dataset_sha256": fingerprint(self.instances),
            "instance_ids": [one.instance_id for one in self.instances],
            **{name: getattr(self, name) for name in _SETTINGS},
        }

    def agent_config(self) -> dict[str, Any]:
        """Merge mini-swe-agent's configuration for SWE-bench with the plan's.

        Raises SwebenchError for an invalid configuration.
        """
        from minisweagent.config import get_config_from_spec
        from minisweagent.utils.serialize import UNSET, recursive_merge

        builtin = "swebench_backticks.yaml" if self.is_text else "swebench.yaml"
        name = "AgentKVTextModel" if self.is_text else "AgentKVModel"
        # local models have no price
        model = {"model_class": f"agentkv.agents.mini_swe.{name}", "cost_tracking": "ignore_errors"}
        limit = UNSET if self.step_limit is None else self.step_limit
        ours = {"model": model, "agent": {"step_limit": limit}}
        try:
            given = map(get_config_from_spec, [f"benchmarks/{builtin}", *self.configs])
            merged: dict[str, Any] = recursive_merge(*given, ours)
        except (OSError, ValueError) as error:
            raise SwebenchError(f"--config: {error}") from error
        return merged

    def describe(self, problem: str | None) -> dict[str, Any]:
        """Return what a run would do and need; `problem` is why its commands cannot run here."""
        needs_images = self.environment in CONTAINERS
        images = {one.instance_id: one.image for one in self.instances} if needs_images else {}
        starts = f"{self.workers} at once"
        if self.jps is not None:
            starts = f"{self.jps:g} start a second at random (seed {self.seed})"
        server = {"base_url": self.base_url, "policy": self.policy}
        if self.base_url is None:
            policy = server_policy(str(self.policy))
            command = ["agentkv", "serve", *([] if self.model is None else [self.model])]
            command += ["--scheduling-policy", policy.scheduling_policy]
            command += [*self.server_flags, *policy.flags()]
            server = {"command": shlex.join(command), "policy": self.policy}
        return {
            "dry_run": True,
            "run": str(self.out),
            "instances": len(self.instances),
            "instance_ids": [one.instance_id for one in self.instances],
            "images": images,
            "disk": disk_needed(len(set(images.values())), self.out),
            "server": server,
            "starts": starts,
            "environment": self.environment,
            "step_limit": self.agent_config()["agent"].get("step_limit"),
            "settings": self.settings(),
            "problem": problem,
        }


def disk_needed(num_images: int, out: Path) -> dict[str, int]:
    """Return the disk that images take, and what is free where `out` is or will be."""
    place = next(one for one in (out.absolute(), *out.absolute().parents) if one.exists())
    return {
        "num_images": num_images,
        "images_bytes_estimate": num_images * IMAGE_BYTES,
        "free_bytes": shutil.disk_usage(place).free,
    }
