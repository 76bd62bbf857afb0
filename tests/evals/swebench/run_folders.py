"""Folders of runs as `agentkv swebench run` and `eval` leave them, for what reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkv.evals.swebench.instances import Instance, load_instances

SUITE = load_instances("demo")
PATCHES = {"a-1": "one", "a-2": "two", "a-3": "", "a-4": "four"}


def gold_patches(instances: Sequence[Instance] = SUITE) -> dict[str, str]:
    """The solution of each instance."""
    return {instance["instance_id"]: instance["patch"] for instance in instances}


def row(instance_id: str, *, start_s: float = 0.0, job_s: float = 10.0, **fields: Any) -> Any:
    """An instance that ended after two turns, of which the second found 60 of 120 tokens cached."""
    turn = {"llm_s": 2.0, "tool_s": 1.0, "output_tokens": 10, "command": "ls"}
    turns = [
        {**turn, "turn": 1, "prompt_tokens": 100, "cached_tokens": 0},
        {**turn, "turn": 2, "prompt_tokens": 120, "cached_tokens": 60, "llm_s": 4.0},
    ]
    return {
        "instance_id": instance_id,
        "job_id": f"{instance_id}-run",
        "start_s": start_s,
        "end_s": start_s + job_s,
        "exit_status": "Submitted",
        "error": None,
        "num_turns": len(turns),
        "turns": turns,
        **fields,
    }


def write_run(
    folder: Path,
    patches: Mapping[str, str],
    *,
    policy: str = "continuum",
    dataset: str = "demo",
    rows: Sequence[Mapping[str, Any]] | None = None,
    **document: Any,
) -> Path:
    """A run of the instances that `patches` names; `document` replaces fields of run.json."""
    folder.mkdir(parents=True, exist_ok=True)
    load = {"workers": 2, "step_limit": 10, "environment": "bubblewrap"}
    data = {"dataset": dataset, "dataset_sha256": "0" * 64, "instance_ids": list(patches)}
    made = {"run_id": f"run-{policy}", "policy": policy, "ended_at": "2025-01-01T00:01:00+00:00"}
    facts = {**made, "model": "scripted", **load, **data, **document}
    predictions = {
        name: {"model_name_or_path": "openai/m", "instance_id": name, "model_patch": patch}
        for name, patch in patches.items()
    }
    rows = [row(name) for name in patches] if rows is None else rows
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "preds.json").write_text(json.dumps(predictions))
    (folder / "instances.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return folder


def write_eval(folder: Path, results: Mapping[str, tuple[str, str]], mode: str = "docker") -> None:
    """An eval.json with a status and the patch's hash for each instance."""
    entries = {
        name: {"status": status, "detail": f"why {name}", "patch_sha256": digest}
        for name, (status, digest) in results.items()
    }
    document = {"mode": mode, "harness_version": "5.0.2", "results": entries}
    (folder / "eval.json").write_text(json.dumps(document))
