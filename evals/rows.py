"""Runs on disk: `turns.jsonl`, a row per turn as it ends, and `run.json`, written at the end.

Used by every command that measures, and by everything that reads runs. Each row is complete in
itself and reaches the disk at once, so an interrupted run keeps what it had. Reading gives back the
outcomes that were written.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import platform
import subprocess
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import agentkv
from agentkv.errors import InputError, reason_of

from .outcomes import JobOutcome, JobStatus, RunOutcome, TurnOutcome, summarize

RUN_FILE, TURNS_FILE = "run.json", "turns.jsonl"
RECORD_FILE = "timestamps.json"
"""The server's event log of the run, where it has one: `agentkv record` reads it."""
PACKAGES = ("numpy",)
"""What every result may depend on; each kind of measurement adds its own."""
_TURN_FIELDS = tuple(field.name for field in fields(TurnOutcome))
_NEEDED_FIELDS = tuple(field.name for field in fields(TurnOutcome) if field.default is MISSING)
_FACTS = ("repeat", "commit", "versions", "config")
_LOADS = ("seed", "jps", "concurrency")


def require_free(path: Path, *, force: bool, flag: str = "--out") -> None:
    """Raise InputError if `path` exists and may not be overwritten."""
    if path.exists() and not force:
        raise InputError(f"{path} exists: choose another {flag}, or --force")


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one step, so a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


class RowFile:
    """A file of JSON lines; a context manager. OSError if the disk is full.

    append: keep the rows of the file, without the incomplete last line that a kill leaves.
    """

    def __init__(self, path: Path, *, append: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if append and path.is_file():
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        # unbuffered: a row is on the disk, or its writing fails here and now
        self._file = path.open("ab" if append else "wb", buffering=0)

    def add(self, row: Mapping[str, Any]) -> None:
        line = json.dumps(row).encode() + b"\n"
        while line:
            line = line[self._file.write(line) or 0 :]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()


def read_rows(path: Path, needed: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Read JSON lines; what follows the last line feed was cut off and is left out.

    Raises InputError, with the line's number, for a line that is not a JSON object or lacks one
    of the `needed` fields.
    """
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        row = json_object(f"{path}: line {number}", line)
        if missing := [name for name in needed if name not in row]:
            raise InputError(f"{path}: line {number} lacks {', '.join(missing)}")
        rows.append(row)
    return rows


def text_of(path: Path) -> str:
    """The text of a file, gzipped or not. Raises InputError, which names it."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read().decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: {reason_of(error)}") from error


def json_object(place: str, text: str | bytes) -> dict[str, Any]:
    """Parse one JSON object; InputError, which begins with its place, for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{place} is no JSON object: {str(value)[:80]}")
    return value


class RunWriter:
    """Writes one run into a folder of its own; a context manager.

    `facts` stands on every row: policy, workload, seed, repeat, commit and versions. Writing raises
    OSError if the disk is full or the folder cannot be written.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any], *, force: bool = False) -> None:
        """Raises InputError if the folder holds a run, without `force`, or cannot be made."""
        for name in (RUN_FILE, TURNS_FILE):
            require_free(folder / name, force=force)
        self._folder = folder
        self._facts = dict(facts)
        try:
            for name in (RUN_FILE, RECORD_FILE):
                (folder / name).unlink(missing_ok=True)
            self._turns = RowFile(folder / TURNS_FILE)
        except OSError as error:
            raise InputError(f"{folder} cannot be written: {reason_of(error)}") from error

    def add_turn(self, job: JobOutcome, turn: TurnOutcome, *, is_last: bool) -> None:
        """Write a row; a job's last row says how the job ended. `job` need not hold the turn."""
        self._turns.add(
            {
                **self._facts,
                "job_id": job.job_id,
                "job_arrived_s": job.arrived_s,
                "job_alone_s": job.alone_s,
                **({} if job.role == "agent" else {"job_role": job.role}),
                **({"job_client": job.client} if job.client else {}),
                "job_status": job.status if is_last else "running",
                "job_ended_s": job.ended_s if is_last else None,
                **asdict(turn),
            }
        )

    def add_job(self, job: JobOutcome) -> None:
        """Write all rows of a job that has ended."""
        for turn in job.turns:
            self.add_turn(job, turn, is_last=turn is job.turns[-1])

    def finish(self, run: RunOutcome, record: Mapping[str, Any] | None = None) -> None:
        """Write `run.json`: how the run was made, the server's counters, the summary.

        record: the server's answer to `GET /v1/agentkv/timestamps`, kept in a file of its own.
        """
        document = {
            "policy": run.policy,
            "workload": dict(run.workload),
            "metadata": dict(run.metadata),
            "server": dict(run.server),
            "summary": summarize(run),
        }
        if record is not None:
            write_whole(self._folder / RECORD_FILE, json.dumps(record) + "\n")
        write_whole(self._folder / RUN_FILE, json.dumps(document, indent=1) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._turns.__exit__()


def row_facts(
    policy: str, workload: Mapping[str, Any], metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """What every row says of its run: enough to plot the row without another file."""
    return {
        "policy": policy,
        "workload": workload.get("name"),
        **{name: workload.get(name) for name in _LOADS},
        **{name: metadata[name] for name in _FACTS if name in metadata},
    }


def read_runs(paths: Sequence[str | Path]) -> list[RunOutcome]:
    """Every run in these folders, and in the folders below them, in the order of their names.

    A run without `run.json` was interrupted: its rows are read, and jobs that were still running
    count as cut. Raises InputError where there is no run.
    """
    runs = []
    for path in map(Path, paths):
        start = path.parent if path.name in (RUN_FILE, TURNS_FILE) else path
        found = sorted(start.rglob(TURNS_FILE))
        if not start.exists():
            raise InputError(f"{path}: no such file")
        if not found:
            raise InputError(f"{path}: no {TURNS_FILE} in it or below it: is this a run's --out?")
        runs += [_read_run(turns_file) for turns_file in found]
    return runs


def _read_run(turns_file: Path) -> RunOutcome:
    rows = read_rows(turns_file, ("job_id", *_NEEDED_FIELDS))
    by_job: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_job.setdefault(row["job_id"], []).append(row)
    run_file = turns_file.with_name(RUN_FILE)
    document = json_object(str(run_file), run_file.read_bytes()) if run_file.exists() else {}
    first = rows[0] if rows else {}
    workload = {name: first.get(name) for name in _LOADS} | {"name": first.get("workload")}
    metadata = {name: first[name] for name in _FACTS if name in first}
    return RunOutcome(
        policy=document.get("policy", first.get("policy", "unknown")),
        workload=document.get("workload") or workload,
        jobs=tuple(_job(job_id, job_rows) for job_id, job_rows in by_job.items()),
        server=document.get("server", {}),
        metadata=document.get("metadata") or metadata,
    )


def _job(job_id: str, rows: Sequence[Mapping[str, Any]]) -> JobOutcome:
    turns = tuple(
        TurnOutcome(**{name: row[name] for name in _TURN_FIELDS if name in row}) for row in rows
    )
    last = rows[-1]
    status: JobStatus = "cut" if last["job_status"] == "running" else last["job_status"]
    seen_until_s = turns[-1].ended_s + turns[-1].tool_s
    return JobOutcome(
        job_id=job_id,
        arrived_s=last["job_arrived_s"],
        ended_s=seen_until_s if last["job_ended_s"] is None else last["job_ended_s"],
        status=status,
        turns=turns,
        alone_s=last["job_alone_s"],
        role=last.get("job_role", "agent"),
        client=last.get("job_client", ""),
    )


def provenance(*packages: str) -> dict[str, Any]:
    """Commit of the working tree this file is in (None outside of one) and installed versions.

    packages: looked up in addition to agentkv, Python and PACKAGES.
    """
    versions = {"agentkv": agentkv.__version__, "python": platform.python_version()}
    for name in (*PACKAGES, *packages):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {"commit": _commit(), "versions": versions}


@functools.cache
def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        # no tag: the hash alone
        done = subprocess.run([*command, "--exclude=*"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def time_stamp() -> str:
    """Current UTC time, for the name of a folder that the user left out."""
    return datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
