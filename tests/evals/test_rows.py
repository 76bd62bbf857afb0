"""Runs on disk."""

import json
from pathlib import Path

import pytest

from agentkv.errors import InputError
from agentkv.evals.outcomes import summarize
from agentkv.evals.rows import RUN_FILE, TURNS_FILE, RunWriter, read_runs, row_facts
from tests.evals.made_runs import job, run, turn, write_run


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """Reading gives the same outcomes, however the jobs ended, and run.json their summary."""
    failed = job("b", status="failed", turns=(turn(first_token_s=None, error="HTTP 500"),))
    written = run(job("a", alone_s=1.0), failed, job("c", status="cut"))
    write_run(tmp_path, written)
    assert read_runs([tmp_path]) == [written]
    assert json.loads((tmp_path / RUN_FILE).read_text())["summary"] == summarize(written)
    rows = [json.loads(line) for line in (tmp_path / TURNS_FILE).read_text().splitlines()]
    needed = {"policy", "workload", "jps", "seed", "repeat", "commit", "versions", "config"}
    assert all(row.keys() >= needed for row in rows)


def test_a_run_that_was_killed_keeps_its_rows(tmp_path: Path) -> None:
    """Without run.json complete rows are read, and jobs that were running count as cut."""
    whole = run(job("a"))
    with RunWriter(tmp_path, row_facts("fcfs", whole.workload, whole.metadata)) as files:
        files.add_job(job("a"))
        running = job("b")
        files.add_turn(running, running.turns[0], is_last=False)
    with (tmp_path / TURNS_FILE).open("a") as rows:
        rows.write('{"policy": "fcfs", "job_id"')
    (found,) = read_runs([tmp_path])
    assert [(job.job_id, job.status) for job in found.jobs] == [("a", "done"), ("b", "cut")]
    assert found.jobs[1].ended_s == 1.5
    assert found.policy == "fcfs"
    assert found.metadata["repeat"] == 0


def test_runs_are_found_below_a_folder_and_not_overwritten(tmp_path: Path) -> None:
    """Runs are read in the order of their names; no run, and one in the way, are errors."""
    with pytest.raises(InputError, match=TURNS_FILE):
        read_runs([tmp_path])
    for name in ("b", "a"):
        write_run(tmp_path / name, run(job(), policy=name))
    with pytest.raises(InputError, match="--force"):
        write_run(tmp_path / "a", run(job()))
    write_run(tmp_path / "a", run(job(), policy="forced"), force=True)
    assert [found.policy for found in read_runs([tmp_path])] == ["forced", "b"]


@pytest.mark.parametrize(
    ("line", "seen"),
    [("{}", "line 1 lacks job_id"), ("nonsense", "line 1 is not JSON"), ("3", "line 1")],
)
def test_a_misshapen_row_is_named(tmp_path: Path, line: str, seen: str) -> None:
    """The message about a row has its line and what it lacks."""
    (tmp_path / TURNS_FILE).write_text(f"{line}\n")
    with pytest.raises(InputError, match=seen):
        read_runs([tmp_path])
