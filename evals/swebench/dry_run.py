"""What a run would do and take, without starting anything."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..policies import server_policy
from .run_plan import IMAGE_BYTES, RunPlan, agent_config

_SHOWN_INSTANCES = 10
_GIB = 2**30


def describe(plan: RunPlan, problem: str | None) -> dict[str, Any]:
    """The plan as one JSON document; `problem` is why its commands could not run here."""
    images = plan.images
    return {
        "dry_run": True,
        "run": str(plan.out),
        "instances": len(plan.instances),
        "instance_ids": plan.instance_ids,
        "images": {one.instance_id: one.image for one in plan.instances} if images else {},
        "disk": {
            "num_images": len(images),
            "images_bytes_estimate": len(images) * IMAGE_BYTES,
            "free_bytes": shutil.disk_usage(_existing(plan.out)).free,
        },
        "server": _server(plan),
        "starts": _starts(plan),
        "environment": plan.environment,
        "step_limit": agent_config(plan)["agent"].get("step_limit"),
        "settings": plan.settings(),
        "problem": problem,
    }


def plan_text(plan: RunPlan, described: Mapping[str, Any]) -> str:
    """The same for a person."""
    disk, server = described["disk"], described["server"]
    lines = [
        f"{described['instances']} instances of {plan.source}, into {plan.out}",
        *_instance_lines(plan),
        f"agents: {described['starts']}, up to {described['step_limit']} steps each",
        f"commands run in: {plan.environment}",
    ]
    if disk["num_images"]:
        lines.append(
            f"images: {disk['num_images']}, about {disk['images_bytes_estimate'] / _GIB:.0f} GiB "
            f"unpacked; {disk['free_bytes'] / _GIB:.0f} GiB are free where the run is kept"
        )
    lines.append(f"server: {server.get('command') or server['base_url']}")
    if described["problem"]:
        lines.append(f"cannot run here: {described['problem']}")
    return "\n".join(lines)


def _instance_lines(plan: RunPlan) -> list[str]:
    shown = plan.instances[:_SHOWN_INSTANCES]
    lines = [f"  {one.instance_id}  {one.image if plan.images else one.repo}" for one in shown]
    num_more = len(plan.instances) - len(shown)
    return lines + ([f"  ... and {num_more} more"] if num_more else [])


def _server(plan: RunPlan) -> dict[str, Any]:
    if plan.base_url is not None:
        return {"base_url": plan.base_url, "policy": plan.policy}
    assert plan.policy is not None, "a server of our own runs a policy"
    policy = server_policy(plan.policy)
    command = ["agentkv", "serve", *([] if plan.model is None else [plan.model])]
    command += ["--scheduling-policy", policy.scheduling_policy]
    command += [*plan.server_flags, *policy.flags()]
    return {"command": shlex.join(command), "policy": plan.policy}


def _starts(plan: RunPlan) -> str:
    if plan.jps is not None:
        return f"{plan.jps:g} start a second at random (seed {plan.seed})"
    return f"{plan.num_workers} at once"


def _existing(path: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
