"""Folders of runs as `agentkv swebench run` and `eval` leave them, for what reads them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkv.evals.swebench.instances import Instance, load_instances

SUITE = load_instances("demo")
GOLD = {instance["instance_id"]: instance["patch"] for instance in SUITE}
PATCHES = {"a-1": "one", "a-2": "two", "a-3": "", "a-4": "four"}


def trajectory(
    patch: str,
    *,
    job_s: float = 10.0,
    exit_status: str = "Submitted",
    cached_tokens: int | None = 60,
    **info: Any,
) -> dict[str, Any]:
    """An instance that ended after two turns, of which the second found 60 of 120 tokens cached."""
    turn = {"first_token_s": None, "output_tokens": 10, "tool_s": 1.0}
    first = {"turn": 0, "sent_s": 0.0, "ended_s": 2.0, "prompt_tokens": 100, "cached_tokens": 0}
    second = {"turn": 1, "sent_s": 3.0, "ended_s": 7.0, "prompt_tokens": 120}
    turns = [{**turn, **first}, {**turn, **second, "cached_tokens": cached_tokens}]
    if cached_tokens is None:
        turns[0]["cached_tokens"] = None
    job = {"job_id": "job", "turns": turns, "began_s": 0.0, "ended_s": job_s}
    return {"info": {"exit_status": exit_status, "submission": patch, "agentkv": job, **info}}


def write_run(
    folder: Path,
    patches: Mapping[str, str],
    *,
    policy: str = "continuum",
    rows: Sequence[Instance] | None = None,
    over: Mapping[str, Mapping[str, Any]] | None = None,
    **document: Any,
) -> Path:
    """A run of the instances that `patches` names.

    over: the instances that are over, and how; default all. `document` replaces fields of run.json.
    """
    rows = [{"instance_id": name} for name in patches] if rows is None else rows
    folder.mkdir(parents=True, exist_ok=True)
    names = [row["instance_id"] for row in rows]
    facts = {"policy": policy, "instance_ids": names, "model": "m", "workers": 2, "settings": {}}
    facts |= {"dataset": "demo", "dataset_sha256": "0" * 64, **document}
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "instances.json").write_text(json.dumps(rows))
    for name, fields in ({name: {} for name in patches} if over is None else over).items():
        own = folder / "agents" / name
        own.mkdir(parents=True, exist_ok=True)
        found = trajectory(patches[name], **fields)
        (own / f"{name}.traj.json").write_text(json.dumps(found))
    return folder


def write_eval(
    folder: Path, patches: Iterable[str], statuses: Sequence[str], mode: str = "docker"
) -> None:
    """An eval.json with a status for each patch."""
    results = {
        name: {"status": status, "detail": f"why {name}"}
        for name, status in zip(patches, statuses, strict=False)
    }
    document = {"mode": mode, "harness_version": "5.0.2", "results": results}
    (folder / "eval.json").write_text(json.dumps(document))
