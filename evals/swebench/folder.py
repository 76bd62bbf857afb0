"""The folder of one run, as it is read: its conditions, and the instances that are over.

`run.json` has the conditions, `instances.json` the rows of the dataset, and `agents` what
mini-swe-agent writes. A kill loses only the instances under way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..outcomes import JobOutcome, RunOutcome, TurnOutcome
from ..rows import json_object
from .instances import SwebenchError

RUN_FILE, INSTANCES_FILE, EVAL_FILE = "run.json", "instances.json", "eval.json"
AGENTS = "agents"
_FINAL_ERROR = "ContextWindowExceededError"  # another attempt would repeat it


@dataclass(frozen=True, slots=True)
class FinishedInstance:
    """An instance that is over, as its trajectory tells; `error` is None if its agent ended."""

    exit_status: str
    error: str | None
    patch: str
    job: JobOutcome
    reports_cached_tokens: bool

    @property
    def is_settled(self) -> bool:
        """True if another attempt is not worth it; an error of server, image or disk may pass."""
        return self.error is None or self.exit_status == _FINAL_ERROR


@dataclass(frozen=True, slots=True)
class SwebenchRun:
    """The content of a folder; `document` is run.json."""

    folder: Path
    document: Mapping[str, Any]
    instances: Mapping[str, FinishedInstance]

    @property
    def policy(self) -> str:
        return str(self.document["policy"])

    def outcome(self) -> RunOutcome:
        """The run as `bench` has it, each instance a job."""
        over = self.instances.values()
        return RunOutcome(
            self.policy,
            {"name": self.document.get("dataset")},
            tuple(one.job for one in over),
            {"preemptions": self.document.get("preemptions")},
            {"reports_cached_tokens": any(one.reports_cached_tokens for one in over)},
        )


def read_run(folder: Path) -> SwebenchRun:
    """Read a run; raises SwebenchError or InputError if there is none, or a damaged one."""
    path = folder / RUN_FILE
    document = json_object(str(path), path.read_bytes()) if path.exists() else {}
    if missing := [name for name in ("policy", "instance_ids") if name not in document]:
        hint = "is this the --out of `agentkv swebench run`?"
        raise SwebenchError(f"{path} lacks {', '.join(missing)}: {hint}")
    return SwebenchRun(folder, document, finished(folder, document["instance_ids"]))


def finished(folder: Path, names: list[str]) -> dict[str, FinishedInstance]:
    """Return the instances that are over, each as it was last played."""
    found = {}
    for name in names:
        try:
            text = (folder / AGENTS / name / f"{name}.traj.json").read_text(encoding="utf-8")
            found[name] = _instance_of(json.loads(text)["info"])
        except (OSError, ValueError, LookupError, TypeError):
            continue  # not played yet, or cut by a kill
    return found


def _instance_of(info: Mapping[str, Any]) -> FinishedInstance:
    facts, error = info["agentkv"], info.get("exception_str")
    turns = facts.get("turns", ())
    return FinishedInstance(
        exit_status=info["exit_status"],
        error=None if error is None else error[:1000] or info["exit_status"],
        patch=info["submission"] or "",
        job=JobOutcome(
            job_id=facts.get("job_id", ""),
            arrived_s=facts.get("began_s", 0.0),
            ended_s=facts.get("ended_s", 0.0),
            status="done" if error is None else "failed",
            turns=tuple(
                TurnOutcome(**{**turn, "cached_tokens": turn["cached_tokens"] or 0})
                for turn in turns
            ),
        ),
        reports_cached_tokens=any(turn["cached_tokens"] is not None for turn in turns),
    )
