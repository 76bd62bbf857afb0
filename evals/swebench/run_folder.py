"""The folder of one run, written so that a kill at any moment loses only what was under way.

Rows are appended whole; `run.json`, `preds.json` and trajectories replace what was there at once.
An instance counts as finished when its row is there, which is written last.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .errors import SwebenchError
from .run_files import PREDICTIONS_FILE, ROWS_FILE, RUN_FILE, read_object, read_rows

TRAJECTORIES, WORKTREES, LOG_FILE = "trajectories", "worktrees", "agents.log"
_OF_A_RUN = (RUN_FILE, ROWS_FILE, PREDICTIONS_FILE)
_LEFT_OVERS = (*_OF_A_RUN, TRAJECTORIES, WORKTREES, LOG_FILE, "server.log", "eval.json", "eval")
_FINAL_ERRORS = frozenset({"error:ContextWindowExceededError"})
"""Ends that another attempt would only repeat."""


class RunFolder:
    """A context manager that holds the folder against other processes.

    Raises SwebenchError if a run is there already, unless it is to be resumed or overwritten.
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
        self._predictions: dict[str, Any] = {}

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The last row of each instance that has one."""
        with self._lock:
            return dict(self._rows)

    @property
    def finished(self) -> set[str]:
        """Ids of the instances that are not to be played again.

        Those that ended by an error of something around the agent are, on the next attempt.
        """
        return {name for name, row in self.rows.items() if _is_final(row)}

    @property
    def document(self) -> dict[str, Any]:
        """What run.json says; empty before the first `write`."""
        return dict(self._document)

    def write(self, **fields: Any) -> None:
        """Change these fields of run.json."""
        self._document |= fields
        _replace(self.path / RUN_FILE, json.dumps(self._document, indent=1) + "\n")

    def add(
        self,
        row: Mapping[str, Any],
        *,
        patch: str,
        model: str,
        trajectory: Mapping[str, Any] | None,
    ) -> None:
        """Keep an instance that ended; safe from any thread. Raises OSError, as for a full disk."""
        name = row["instance_id"]
        if trajectory is not None:
            text = json.dumps(trajectory, indent=1, default=str)
            _replace(self.path / TRAJECTORIES / f"{name}.traj.json", text)
        prediction = {"model_name_or_path": model, "instance_id": name, "model_patch": patch}
        with self._lock:
            predictions = self._predictions | {name: prediction}
            _replace(self.path / PREDICTIONS_FILE, json.dumps(predictions, indent=1) + "\n")
            self._predictions = predictions
            self._append(json.dumps(dict(row)).encode() + b"\n")
            self._rows[name] = dict(row)

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        self._held = (self.path / ".lock").open("wb")
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._held.close()
            raise SwebenchError(f"{self.path}: another run is at work there") from error
        try:
            self._open()
        except BaseException:
            self._held.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _remove(self.path, (WORKTREES,))
        self._held.close()

    def _open(self) -> None:
        if self._is_overwritten:
            _remove(self.path, _LEFT_OVERS)
        _remove(self.path, (WORKTREES,))  # what a run that was killed left behind
        (self.path / TRAJECTORIES).mkdir(exist_ok=True)
        self._document = read_object(self.path / RUN_FILE) or {}
        self._predictions = read_object(self.path / PREDICTIONS_FILE) or {}
        _cut_to_whole_lines(self.path / ROWS_FILE)
        self._rows = read_rows(self.path / ROWS_FILE)

    def _append(self, line: bytes) -> None:
        """A line, whole and on the disk, or an error and nothing but whole lines there."""
        path = self.path / ROWS_FILE
        with path.open("ab", buffering=0) as file:
            whole_bytes = file.seek(0, os.SEEK_END)
            try:
                while line:
                    line = line[file.write(line) or 0 :]
            except OSError:
                with suppress(OSError):  # where it is no plain file; the first error counts
                    file.truncate(whole_bytes)
                raise


def _is_final(row: Mapping[str, Any]) -> bool:
    status = str(row.get("exit_status"))
    return not status.startswith("error:") or status in _FINAL_ERRORS


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def _cut_to_whole_lines(path: Path) -> None:
    if path.exists():
        text = path.read_bytes()
        os.truncate(path, text.rfind(b"\n") + 1)


def _remove(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
