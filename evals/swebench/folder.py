"""The folder of one run: written so that a kill loses only the instances under way, then read.

mini-swe-agent's batch writes `preds.json` and `ID/ID.traj.json`. `run.json` (the conditions) and
`instances.jsonl` (a row per instance that ended, written last) are ours. `run` writes through
RunFolder; grading and report read through `read_run`.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkv.errors import InputError

from ..rows import RowFile, json_object, read_rows, write_whole
from .instances import SwebenchError

RUN_FILE, ROWS_FILE, PREDICTIONS_FILE = "run.json", "instances.jsonl", "preds.json"
LOG_FILE, SERVER_LOG, EVAL_FILE, EVAL_FOLDER = "agents.log", "server.log", "eval.json", "eval"
WORKTREES, REPOSITORIES, SERVER_NOTE = "worktrees", "repositories", "server.pid"
ERROR_PREFIX = "error:"
_OF_A_RUN = (RUN_FILE, ROWS_FILE, PREDICTIONS_FILE)
_LEFT_OVERS = (*_OF_A_RUN, WORKTREES, LOG_FILE, SERVER_LOG, EVAL_FILE, EVAL_FOLDER)
_REPORT_FILES = ("report.md", "report.json", "report.png")
RESERVED_NAMES = frozenset({*_LEFT_OVERS, *_REPORT_FILES, REPOSITORIES, SERVER_NOTE, ".lock"})
"""Names that no instance may have: mini-swe-agent makes a folder for each."""
_ROW_FIELDS = ("instance_id", "start_s", "end_s", "exit_status", "turns")
_FINAL_ERRORS = frozenset({f"{ERROR_PREFIX}ContextWindowExceededError"})
"""Errors that another attempt would only repeat."""


@dataclass(frozen=True, slots=True)
class SwebenchRun:
    """The content of a folder: `document` is run.json, `rows` has each instance's last row."""

    folder: Path
    document: Mapping[str, Any]
    rows: Mapping[str, Mapping[str, Any]]
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
    if document is None:
        raise SwebenchError(
            f"{folder}: no {RUN_FILE}: is this the --out of `agentkv swebench run`?"
        )
    if missing := [name for name in ("run_id", "policy", "instance_ids") if name not in document]:
        raise SwebenchError(f"{folder / RUN_FILE}: lacks {', '.join(missing)}")
    ids = document["instance_ids"]
    are_names = isinstance(ids, list) and all(isinstance(name, str) for name in ids)
    if not are_names or len(set(ids)) < len(ids):
        raise SwebenchError(f"{folder / RUN_FILE}: instance_ids is no list of names, each once")
    rows = _rows_by_id(folder / ROWS_FILE)
    predictions = read_object(folder / PREDICTIONS_FILE) or {}
    submitted = {name for name, row in rows.items() if row["exit_status"] == "Submitted"}
    for name in sorted(submitted | set(predictions)):
        if not isinstance(predictions.get(name), dict):  # it is written before the row
            raise SwebenchError(f"{folder / PREDICTIONS_FILE}: has no prediction of {name}")
    run_id, policy = str(document["run_id"]), str(document["policy"])
    return SwebenchRun(folder, document, rows, predictions, run_id, policy, tuple(ids))


def read_object(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if there is no such file. Raises InputError for other content."""
    return json_object(str(path), path.read_bytes()) if path.exists() else None


@contextmanager
def open_run(path: Path, *, resume: bool = False, force: bool = False) -> Iterator[RunFolder]:
    """Hold the folder against other processes inside the block.

    Raises SwebenchError if it holds a run already, unless resumed or overwritten.
    """
    present = [name for name in _OF_A_RUN if (path / name).exists()]
    if present and not (resume or force):
        raise SwebenchError(
            f"{path / present[0]} exists: choose another --out, --resume to go on with the "
            "run there, or --force to throw it away"
        )
    path.mkdir(parents=True, exist_ok=True)
    with (path / ".lock").open("wb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SwebenchError(f"{path}: another run is at work there") from error
        if force and not resume:
            trajectories = [trajectory.parent for trajectory in path.glob("*/*.traj.json")]
            for left_over in (*trajectories, *(path / name for name in _LEFT_OVERS)):
                _remove(left_over)
        _remove(path / WORKTREES)  # what a run that was killed left behind
        try:
            yield RunFolder(path)
        finally:
            _remove(path / WORKTREES)


class RunFolder:
    """What is on disk of a run under way; `rows` has the last row of each instance that has one.

    document: the content of run.json; empty before the first `write`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.document = read_object(path / RUN_FILE) or {}
        self.rows = _rows_by_id(path / ROWS_FILE)
        self._lock = threading.Lock()
        try:
            read_object(path / PREDICTIONS_FILE)
        except InputError:  # mini-swe-agent writes in place, which a kill may have cut
            self._rebuild_predictions()

    @property
    def finished(self) -> set[str]:
        """Ids of the instances that a resumed run skips: those that ended without an error.

        An error around the agent (server, image, disk) may not occur again.
        """
        statuses = {name: str(row["exit_status"]) for name, row in self.rows.items()}
        return {
            name
            for name, status in statuses.items()
            if not status.startswith(ERROR_PREFIX) or status in _FINAL_ERRORS
        }

    def write(self, **fields: Any) -> None:
        """Change these fields of run.json."""
        self.document |= fields
        write_whole(self.path / RUN_FILE, json.dumps(self.document, indent=1) + "\n")

    def add(self, row: Mapping[str, Any]) -> None:
        """Append the row of an instance that ended; thread-safe. Raises OSError on a full disk."""
        with self._lock, RowFile(self.path / ROWS_FILE, append=True) as rows:
            rows.add(row)
            self.rows[row["instance_id"]] = dict(row)

    def _rebuild_predictions(self) -> None:
        """Take the patches from the trajectories."""
        predictions = {}
        for name in self.rows:
            saved = read_object(self.path / name / f"{name}.traj.json") or {}
            predictions[name] = {
                "model_name_or_path": f"openai/{self.document.get('model')}",
                "instance_id": name,
                "model_patch": str(saved.get("info", {}).get("submission") or ""),
            }
        write_whole(self.path / PREDICTIONS_FILE, json.dumps(predictions, indent=2))


def _rows_by_id(path: Path) -> dict[str, dict[str, Any]]:
    rows = read_rows(path, _ROW_FIELDS) if path.exists() else []
    return {row["instance_id"]: row for row in rows}


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
