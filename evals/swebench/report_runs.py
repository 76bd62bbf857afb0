"""Reads the folder of one `agentkv swebench run`: what was run, what came of it, what it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import SwebenchError
from .run_files import PREDICTIONS_FILE, ROWS_FILE, RUN_FILE, read_object, read_rows


@dataclass(frozen=True, slots=True)
class SwebenchRun:
    """`document` is run.json; `rows` has the last row of each instance that ended."""

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
        """Empty where there is none."""
        return str(self.predictions.get(instance_id, {}).get("model_patch") or "")


def read_run(folder: Path) -> SwebenchRun:
    """Raises SwebenchError if the folder holds no run, or one that cannot be read."""
    document = read_object(folder / RUN_FILE)
    if document is None:
        raise SwebenchError(
            f"{folder}: no {RUN_FILE}: is this the --out of `agentkv swebench run`?"
        )
    missing = [name for name in ("run_id", "policy", "instance_ids") if name not in document]
    if missing:
        raise SwebenchError(f"{folder / RUN_FILE}: lacks {', '.join(missing)}")
    if not _are_names(document["instance_ids"]):
        raise SwebenchError(f"{folder / RUN_FILE}: instance_ids is no list of names, each once")
    rows = read_rows(folder / ROWS_FILE)
    predictions = read_object(folder / PREDICTIONS_FILE) or {}
    handed_in = {name for name, row in rows.items() if row.get("exit_status") == "Submitted"}
    for name in sorted(handed_in | set(predictions)):
        if not isinstance(predictions.get(name), dict):  # it is written before the row
            raise SwebenchError(f"{folder / PREDICTIONS_FILE}: has no prediction of {name}")
    return SwebenchRun(folder, document, rows, predictions)


def _are_names(found: Any) -> bool:
    is_list = isinstance(found, list) and all(isinstance(name, str) for name in found)
    return is_list and len(set(found)) == len(found)
