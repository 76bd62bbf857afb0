"""Bash commands with the wall time they took, from JSON lines, gzipped or not.

A line has `command` and `duration_s`, and if known `session`, `order`, `censored` (the logged time
is a person's: the command took at most 3 s), `is_error` and `timeout_s`.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agentkv.errors import InputError
from agentkv.evals.rows import json_object

CENSORED_AT_MOST_S = 3.0
Bound = Literal["exact", "lower", "upper"]
"""What a duration is: exact; it ran at least that long (cut by a time-out); at most that long."""


@dataclass(frozen=True, slots=True)
class TracedCommand:
    """One command of a trace; `bound` says what `duration_s` is."""

    command: str
    duration_s: float
    bound: Bound = "exact"
    order: float = 0.0


def read_trace(path: Path) -> list[TracedCommand]:
    """The file's commands in time order, by `order` or else by line. Raises InputError."""
    try:
        data = path.read_bytes()
        lines = (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
    except OSError as error:
        raise InputError(f"{path}: {error}") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        place = f"{path}: line {number}"
        try:
            rows.append(_command(json_object(place, line), number))
        except (KeyError, TypeError) as error:
            raise InputError(f"{place}: command or duration_s: {error!r}") from error
    return sorted(rows, key=lambda row: row.order)


def _command(line: dict[str, Any], number: int) -> TracedCommand:
    order = float(line.get("order") or number)
    duration_s, timeout_s = line["duration_s"], line.get("timeout_s")
    if line.get("censored"):
        at_most_s = min(
            CENSORED_AT_MOST_S, CENSORED_AT_MOST_S if duration_s is None else duration_s
        )
        return TracedCommand(line["command"], at_most_s, "upper", order)
    is_cut = line.get("is_error") and timeout_s is not None and duration_s >= timeout_s
    return TracedCommand(line["command"], float(duration_s), "lower" if is_cut else "exact", order)
