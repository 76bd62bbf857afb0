"""Reads the folder of one `agentkv swebench run`: what was run, what came of it, what it took."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import SwebenchError

RUN_FILE, ROWS_FILE, PREDICTIONS_FILE = "run.json", "instances.jsonl", "preds.json"


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
    """Raises SwebenchError if the folder holds no run, or one that cannot be read.

    A row cut in the middle, as a kill leaves it, is not there.
    """
    document = _json(folder / RUN_FILE)
    if document is None:
        raise SwebenchError(
            f"{folder}: no {RUN_FILE}: is this the --out of `agentkv swebench run`?"
        )
    missing = [name for name in ("run_id", "policy", "instance_ids") if name not in document]
    if missing:
        raise SwebenchError(f"{folder / RUN_FILE}: lacks {', '.join(missing)}")
    return SwebenchRun(
        folder, document, _rows(folder / ROWS_FILE), _json(folder / PREDICTIONS_FILE) or {}
    )


def _json(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SwebenchError(f"{path}: is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise SwebenchError(f"{path}: holds {type(found).__name__}, not an object")
    return found


def _rows(path: Path) -> dict[str, Mapping[str, Any]]:
    if not path.exists():
        return {}
    rows = {}
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last end of line is cut
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            rows[row["instance_id"]] = row
        except (ValueError, LookupError, TypeError) as error:
            raise SwebenchError(
                f"{path}: line {number} is no row of an instance: {error}"
            ) from error
    return rows
