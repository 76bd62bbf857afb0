"""The folder of one run: written so that a kill loses only the instances under way, then read.

mini-swe-agent's batch writes `preds.json` and `ID/ID.traj.json`. `run.json` (the conditions) and
`instances.jsonl` (a row per instance that ended, written last) are ours.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..rows import json_object, read_rows, write_whole
from .environments import REPOSITORIES, WORKTREES
from .instances import SwebenchError

RUN_FILE, ROWS_FILE, PREDICTIONS_FILE = "run.json", "instances.jsonl", "preds.json"
LOG_FILE, SERVER_LOG, EVAL_FILE, EVAL_FOLDER = "agents.log", "server.log", "eval.json", "eval"
ERROR_PREFIX = "error:"
_OF_A_RUN = (RUN_FILE, ROWS_FILE, PREDICTIONS_FILE)
_LEFT_OVERS = (*_OF_A_RUN, WORKTREES, LOG_FILE, SERVER_LOG, EVAL_FILE, EVAL_FOLDER)
_OTHERS = ("report.md", "report.json", REPOSITORIES, ".lock")
RESERVED_NAMES = frozenset({*_LEFT_OVERS, *_OTHERS})
"""Names that no instance may have: mini-swe-agent makes a folder for each."""
_ROW_FIELDS = ("instance_id", "start_s", "end_s", "exit_status", "turns")
_FINAL_ERROR = f"{ERROR_PREFIX}ContextWindowExceededError"  # another attempt would repeat it
Rows = dict[str, dict[str, Any]]
"""The last row of each instance that has one, by its id."""


@dataclass(frozen=True, slots=True)
class SwebenchRun:
    """The content of a folder; `document` is run.json."""

    folder: Path
    document: Mapping[str, Any]
    rows: Rows
    predictions: Mapping[str, Mapping[str, Any]]
    run_id: str
    policy: str
    instance_ids: tuple[str, ...]

    def patch(self, instance_id: str) -> str:
        """Return the instance's patch, empty if there is none."""
        return str(self.predictions.get(instance_id, {}).get("model_patch") or "")


def read_run(folder: Path) -> SwebenchRun:
    """Read a run; raises SwebenchError or InputError if there is none, or a damaged one."""
    document = read_object(folder / RUN_FILE)
    if missing := [name for name in ("run_id", "policy", "instance_ids") if name not in document]:
        hint = "is this the --out of `agentkv swebench run`?"
        raise SwebenchError(f"{folder / RUN_FILE} lacks {', '.join(missing)}: {hint}")
    rows, predictions = read_instances(folder), read_object(folder / PREDICTIONS_FILE)
    submitted = {name for name, row in rows.items() if row["exit_status"] == "Submitted"}
    for name in sorted(submitted | set(predictions)):
        if not isinstance(predictions.get(name), dict):  # it is written before the row
            raise SwebenchError(f"{folder / PREDICTIONS_FILE}: has no prediction of {name}")
    run_id, policy, ids = (document[name] for name in ("run_id", "policy", "instance_ids"))
    return SwebenchRun(folder, document, rows, predictions, run_id, policy, tuple(ids))


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object, empty if there is no such file; InputError for other content."""
    return json_object(str(path), path.read_bytes()) if path.exists() else {}


def read_instances(folder: Path) -> Rows:
    """Read the rows of a run; raises InputError for a damaged one."""
    path = folder / ROWS_FILE
    rows = read_rows(path, _ROW_FIELDS) if path.exists() else []
    return {row["instance_id"]: row for row in rows}


@contextmanager
def open_run(folder: Path, *, resume: bool = False, force: bool = False) -> Iterator[None]:
    """Hold the folder against other processes inside the block.

    Raises SwebenchError if it holds a run already, unless that is resumed or overwritten.
    """
    present = [name for name in _OF_A_RUN if (folder / name).exists()]
    if present and not (resume or force):
        raise SwebenchError(
            f"{folder / present[0]} exists: choose another --out, --resume to go on with the "
            "run there, or --force to throw it away"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("wb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SwebenchError(f"{folder}: another run is at work there") from error
        if force and not resume:
            trajectories = [path.parent for path in folder.glob("*/*.traj.json")]
            for left_over in (*trajectories, *(folder / name for name in _LEFT_OVERS)):
                _remove(left_over)
        elif present:
            _rebuild_predictions(folder)
        _remove(folder / WORKTREES)  # what a run that was killed left behind
        try:
            yield
        finally:
            _remove(folder / WORKTREES)


def finished(folder: Path) -> Rows:
    """Return the rows that a resumed run keeps: of instances that ended without an error.

    An error around the agent (server, image, disk) may not occur again.
    """
    found = read_instances(folder)
    return {
        name: row
        for name, row in found.items()
        if not row["exit_status"].startswith(ERROR_PREFIX) or row["exit_status"] == _FINAL_ERROR
    }


def _rebuild_predictions(folder: Path) -> None:
    """Take the patches from the trajectories: a kill may have cut what is written in place."""
    predictions = {}
    for name in finished(folder):
        info = read_object(folder / name / f"{name}.traj.json").get("info", {})
        predictions[name] = {
            "model_name_or_path": info.get("config", {}).get("model", {}).get("model_name"),
            "instance_id": name,
            "model_patch": str(info.get("submission") or ""),
        }
    write_whole(folder / PREDICTIONS_FILE, json.dumps(predictions, indent=2))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
