"""A run on disk: `turns.jsonl`, a row a turn as it ends, and `run.json`, written at the end.

Rows are complete in themselves, and go to the disk one by one: a run that is interrupted keeps what
it had. Reading gives back the outcomes that were written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentkv.errors import AgentKVError

from .outcomes import JobOutcome, JobStatus, RunOutcome, TurnOutcome
from .summary import summarize

RUN_FILE, TURNS_FILE = "run.json", "turns.jsonl"
RECORD_FILE = "timestamps.json"
"""The server's own record of the jobs, where it has one: `agentkv record` reads it."""
_TURN_FIELDS = tuple(field.name for field in fields(TurnOutcome))
_NEEDED_FIELDS = tuple(field.name for field in fields(TurnOutcome) if field.default is MISSING)


class RunFilesError(AgentKVError):
    """A run that is not there, is there already, or cannot be read."""


class RunWriter:
    """Writes one run into a folder of its own; a context manager.

    `facts` stands on every row: policy, workload, seed, repeat, commit and versions. Writing raises
    OSError where the disk is full or the folder cannot be written.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any], *, force: bool = False) -> None:
        """Raises RunFilesError if the folder holds a run and `force` is not given."""
        present = [name for name in (RUN_FILE, TURNS_FILE) if (folder / name).exists()]
        if present and not force:
            raise RunFilesError(f"{folder / present[0]} exists: choose another --out, or --force")
        folder.mkdir(parents=True, exist_ok=True)
        for stale in (RUN_FILE, RECORD_FILE):
            (folder / stale).unlink(missing_ok=True)
        self._folder = folder
        self._facts = dict(facts)
        # unbuffered: a row is on the disk, or its writing fails here and now
        self._turns = (folder / TURNS_FILE).open("wb", buffering=0)

    def add_turn(self, job: JobOutcome, turn: TurnOutcome, *, is_last: bool) -> None:
        """One row; the last of a job says how the job ended. `job` need not hold the turn yet."""
        row = {
            **self._facts,
            "job_id": job.job_id,
            "job_arrived_s": job.arrived_s,
            "job_alone_s": job.alone_s,
            "job_status": job.status if is_last else "running",
            "job_ended_s": job.ended_s if is_last else None,
            **asdict(turn),
        }
        line = json.dumps(row).encode() + b"\n"
        while line:
            line = line[self._turns.write(line) or 0 :]

    def add_job(self, job: JobOutcome) -> None:
        """All rows of a job that is over."""
        for turn in job.turns:
            self.add_turn(job, turn, is_last=turn is job.turns[-1])

    def finish(self, run: RunOutcome) -> None:
        """Write `run.json`: how the run was made, the server's counters, the summary."""
        document = {
            "policy": run.policy,
            "workload": dict(run.workload),
            "metadata": dict(run.metadata),
            "server": dict(run.server),
            "summary": summarize(run),
        }
        partial = self._folder / f".{RUN_FILE}.{os.getpid()}"
        partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        partial.replace(self._folder / RUN_FILE)

    def add_record(self, record: Mapping[str, Any]) -> None:
        """The answer of the server's `GET /v1/agentkv/timestamps`."""
        (self._folder / RECORD_FILE).write_text(json.dumps(record) + "\n", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._turns.close()


def write_run(folder: Path, run: RunOutcome, *, force: bool = False) -> None:
    """A run that is over, both files at once."""
    with RunWriter(folder, row_facts(run.policy, run.workload, run.metadata), force=force) as files:
        for job in run.jobs:
            files.add_job(job)
        files.finish(run)


def row_facts(
    policy: str, workload: Mapping[str, Any], metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """What every row of a run says of it: enough to plot the row without another file."""
    named = ("repeat", "commit", "versions", "config")
    return {
        "policy": policy,
        "workload": workload.get("name"),
        "seed": workload.get("seed"),
        "jps": workload.get("jps"),
        "concurrency": workload.get("concurrency"),
        **{name: metadata[name] for name in named if name in metadata},
    }


def read_runs(paths: Sequence[str | Path]) -> list[RunOutcome]:
    """Every run in these folders, and in the folders below them, in the order of their names.

    A run without `run.json` was interrupted: what its rows say is read, jobs that were still
    running count as cut. Raises RunFilesError where there is no run.
    """
    runs = []
    for path in map(Path, paths):
        start = path.parent if path.is_file() else path
        found = sorted(start.rglob(TURNS_FILE))
        if not found:
            raise RunFilesError(
                f"{path}: no {TURNS_FILE} in it or below it: is this a run's --out?"
            )
        runs += [_read_run(turns_file) for turns_file in found]
    return runs


def _read_run(turns_file: Path) -> RunOutcome:
    rows = _rows(turns_file)
    by_job: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_job.setdefault(row["job_id"], []).append(row)
    jobs = tuple(_job(job_id, job_rows) for job_id, job_rows in by_job.items())
    document = _document(turns_file.with_name(RUN_FILE))
    first = rows[0] if rows else {}
    return RunOutcome(
        policy=document.get("policy", first.get("policy", "unknown")),
        workload=document.get("workload")
        or {name: first.get(name) for name in ("seed", "jps", "concurrency")}
        | {"name": first.get("workload")},
        jobs=jobs,
        server=document.get("server", {}),
        metadata=document.get("metadata")
        or {
            name: first[name]
            for name in ("repeat", "commit", "versions", "config")
            if name in first
        },
    )


def _rows(turns_file: Path) -> list[dict[str, Any]]:
    rows = []
    lines = turns_file.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last end of line is cut
        try:
            row = json.loads(line)
            missing = [name for name in ("job_id", *_NEEDED_FIELDS) if name not in row]
        except (ValueError, TypeError) as error:
            raise RunFilesError(f"{turns_file}: line {number} is no JSON row: {error}") from error
        if missing:
            raise RunFilesError(f"{turns_file}: line {number} lacks {', '.join(missing)}")
        rows.append(row)
    return rows


def _document(run_file: Path) -> dict[str, Any]:
    if not run_file.exists():
        return {}
    try:
        document = json.loads(run_file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunFilesError(f"{run_file}: is not JSON: {error}") from error
    return document if isinstance(document, dict) else {}


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
    )
