"""Reads the files in the folder of one `agentkv swebench run`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import SwebenchError

RUN_FILE, ROWS_FILE, PREDICTIONS_FILE = "run.json", "instances.jsonl", "preds.json"


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object; None if there is no such file. Raises SwebenchError if it holds another."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SwebenchError(f"{path}: is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise SwebenchError(f"{path}: holds {type(found).__name__}, not an object")
    return found


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """The last row of each instance, by its id; a last line cut in the middle, as a kill leaves it,
    is not there. Raises SwebenchError for any other line that is no row."""
    if not path.exists():
        return {}
    rows: dict[str, dict[str, Any]] = {}
    whole_lines = path.read_bytes().split(b"\n")[:-1]
    for number, line in enumerate(whole_lines, start=1):
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
