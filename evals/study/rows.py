"""A study's rows on disk: a line a unit, written as it ends."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentkv.errors import AgentKVError

ROWS_FILE, STUDY_FILE, TABLES_FILE = "rows.jsonl", "study.json", "tables.md"
Row = dict[str, Any]
_OF_EVERY_ROW = frozenset(
    {
        *("unit", "tools", "pool_blocks", "load", "jps", "multiple", "concurrency", "seed"),
        *("policy", "one_x", "error", "wall_s", "cpu_s", "commit", "code", "config"),
    }
)
"""A row without one of them was written by another version, and is as good as none."""


class StudyError(AgentKVError):
    """A study that is there already, is not there, or does not fit what is asked."""


class RowFile:
    """Appends whole lines; a context manager. OSError where the disk is full."""

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        path = out / ROWS_FILE
        is_torn = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
        # unbuffered: a row is on the disk, or its writing fails here and now
        self._file = path.open("ab", buffering=0)
        if is_torn:
            self._file.write(b"\n")

    def add(self, row: Mapping[str, Any]) -> None:
        line = json.dumps(row).encode() + b"\n"
        while line:
            line = line[self._file.write(line) or 0 :]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def read_rows(out: Path) -> list[Row]:
    """The last row of each unit, in the order of their first; what is no whole row does not count.

    Raises StudyError where there is no file of rows.
    """
    try:
        lines = (out / ROWS_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise StudyError(f"{out / ROWS_FILE}: cannot be read: {error}") from error
    rows: dict[str, Row] = {}
    for line in lines:
        row = _row(line)
        if row is not None:
            rows[row["unit"]] = row
    return list(rows.values())


def _row(line: str) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and row.keys() >= _OF_EVERY_ROW else None


def check_same(rows: Sequence[Row], config: Mapping[str, Any], out: Path) -> None:
    """Rows of other jobs or another machine must not mix with new ones: StudyError."""
    for row in rows:
        other = [name for name in config if row["config"].get(name) != config[name]]
        if other:
            name = other[0]
            raise StudyError(
                f"{out}: its rows were made with {name} = {row['config'].get(name)!r}, now it is "
                f"{config[name]!r}: choose another --out, or --force"
            )
