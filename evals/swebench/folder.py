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
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ..rows import RowFile, read_rows, write_whole
from .instances import SwebenchError

RUN_FILE, ROWS_FILE, PREDICTIONS_FILE = "run.json", "instances.jsonl", "preds.json"
LOG_FILE, SERVER_LOG, EVAL_FILE, EVAL_FOLDER = "agents.log", "server.log", "eval.json", "eval"
WORKTREES, REPOSITORIES, SERVER_NOTE = "worktrees", "repositories", "server.pid.json"
ERROR_PREFIX = "error:"
_OF_A_RUN = (RUN_FILE, ROWS_FILE, PREDICTIONS_FILE)
_LEFT_OVERS = (*_OF_A_RUN, WORKTREES, LOG_FILE, SERVER_LOG, EVAL_FILE, EVAL_FOLDER)
_REPORT_FILES = ("report.md", "report.json", "report.png")
RESERVED_NAMES = frozenset({*_LEFT_OVERS, *_REPORT_FILES, REPOSITORIES, SERVER_NOTE, ".lock"})
"""Names that no instance may have: mini-swe-agent makes a folder for each."""
_FINAL_ERRORS = frozenset({f"{ERROR_PREFIX}ContextWindowExceededError"})
"""Errors that another attempt would only repeat."""


@dataclass(frozen=True, slots=True)
class SwebenchRun:
    """The content of a folder: `document` is run.json, `rows` has each instance's last row."""

    folder: Path
    document: Mapping[str, Any]
    rows: Mapping[str, Mapping[str, Any]]
    predictions: Mapping[str, Mapping[str, Any]]

    @property
    def instance_ids(self) -> tuple[str, ...]:
        return tuple(self.document["instance_ids"])

    @property
    def run_id(self) -> str:
        return str(self.document["run_id"])

    @property
    def policy(self) -> str:
        return str(self.document["policy"])

    def patch(self, instance_id: str) -> str:
        """Return the instance's patch, empty if there is none."""
        return str(self.predictions.get(instance_id, {}).get("model_patch") or "")


def read_run(folder: Path) -> SwebenchRun:
    """Read a run; raises SwebenchError if the folder holds none, or a damaged one."""
    document = read_object(folder / RUN_FILE)
    if document is None:
        raise SwebenchError(
            f"{folder}: no {RUN_FILE}: is this the --out of `agentkv swebench run`?"
        )
    missing = [name for name in ("run_id", "policy", "instance_ids") if name not in document]
    if missing:
        raise SwebenchError(f"{folder / RUN_FILE}: lacks {', '.join(missing)}")
    ids = document["instance_ids"]
    are_names = isinstance(ids, list) and all(isinstance(name, str) for name in ids)
    if not are_names or len(set(ids)) < len(ids):
        raise SwebenchError(f"{folder / RUN_FILE}: instance_ids is no list of names, each once")
    rows = _rows_by_id(folder / ROWS_FILE)
    predictions = read_object(folder / PREDICTIONS_FILE) or {}
    submitted = {name for name, row in rows.items() if row.get("exit_status") == "Submitted"}
    for name in sorted(submitted | set(predictions)):
        if not isinstance(predictions.get(name), dict):  # it is written before the row
            raise SwebenchError(f"{folder / PREDICTIONS_FILE}: has no prediction of {name}")
    return SwebenchRun(folder, document, rows, predictions)


def read_object(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if there is no such file. Raises SwebenchError for other content."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SwebenchError(f"{path}: is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise SwebenchError(f"{path}: holds {type(found).__name__}, not an object")
    return found


class RunFolder:
    """A context manager that holds the folder against other processes.

    Raises SwebenchError if it holds a run already, unless resumed or overwritten.
    """

    def __init__(self, path: Path, *, resume: bool = False, force: bool = False) -> None:
        present = [name for name in _OF_A_RUN if (path / name).exists()]
        if present and not (resume or force):
            raise SwebenchError(
                f"{path / present[0]} exists: choose another --out, --resume to go on with the "
                "run there, or --force to throw it away"
            )
        self.path = path
        self._is_overwritten = force and not resume
        self._lock = threading.Lock()
        self._document: dict[str, Any] = {}
        self._rows: dict[str, dict[str, Any]] = {}
        self._row_file: RowFile | None = None

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The last row of each instance that has one."""
        with self._lock:
            return dict(self._rows)

    @property
    def finished(self) -> set[str]:
        """Ids of the instances that a resumed run skips: those that ended without an error.

        An error around the agent (server, image, disk) may not occur again.
        """
        statuses = {name: str(row.get("exit_status")) for name, row in self.rows.items()}
        return {
            name
            for name, status in statuses.items()
            if not status.startswith(ERROR_PREFIX) or status in _FINAL_ERRORS
        }

    @property
    def document(self) -> dict[str, Any]:
        """The content of run.json; empty before the first `write`."""
        return dict(self._document)

    def write(self, **fields: Any) -> None:
        """Change these fields of run.json."""
        self._document |= fields
        write_whole(self.path / RUN_FILE, json.dumps(self._document, indent=1) + "\n")

    def add(self, row: Mapping[str, Any]) -> None:
        """Append the row of an instance that ended; thread-safe. Raises OSError on a full disk."""
        with self._lock:
            if self._row_file is None:  # no file that would stand in the way of another attempt
                rows = RowFile(self.path / ROWS_FILE, append=True)
                self._row_file = self._stack.enter_context(rows)
            self._row_file.add(row)
            self._rows[row["instance_id"]] = dict(row)

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            held = stack.enter_context((self.path / ".lock").open("wb"))
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise SwebenchError(f"{self.path}: another run is at work there") from error
            self._open()
            stack.callback(_remove, self.path / WORKTREES)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def _open(self) -> None:
        if self._is_overwritten:
            trajectories = [path.parent for path in self.path.glob("*/*.traj.json")]
            for path in (*trajectories, *(self.path / name for name in _LEFT_OVERS)):
                _remove(path)
        _remove(self.path / WORKTREES)  # what a run that was killed left behind
        self._document = read_object(self.path / RUN_FILE) or {}
        self._rows = _rows_by_id(self.path / ROWS_FILE)
        self._repair_predictions()

    def _repair_predictions(self) -> None:
        """Rebuild preds.json from the trajectories: mini-swe-agent's write may be cut by a kill."""
        path = self.path / PREDICTIONS_FILE
        try:
            read_object(path)
        except SwebenchError:
            model = f"openai/{self._document.get('model')}"
            patches = {name: self._submission(name) for name in self._rows}
            predictions = {
                name: {"model_name_or_path": model, "instance_id": name, "model_patch": patch}
                for name, patch in patches.items()
            }
            write_whole(path, json.dumps(predictions, indent=2))

    def _submission(self, name: str) -> str:
        saved = read_object(self.path / name / f"{name}.traj.json") or {}
        return str(saved.get("info", {}).get("submission") or "")


def _rows_by_id(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    rows = read_rows(path)
    try:
        return {row["instance_id"]: row for row in rows}
    except (LookupError, TypeError) as error:
        raise SwebenchError(f"{path}: a line is no row of an instance: {error}") from error


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
