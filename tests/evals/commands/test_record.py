"""`agentkv record`: the table, the document, the picture, and its complaints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentkv.evals.commands.record import main
from tests.evals.event_log.rows import TWO_TURNS, write_record


@pytest.fixture
def source(tmp_path: Path) -> str:
    jobs = {f"job-{number}": TWO_TURNS for number in range(3)}
    return str(write_record(tmp_path / "scheduler_timestamps.jsonl", **jobs))


def test_the_table_has_a_line_for_each_job(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And the totals under it."""
    assert main([source]) == 0
    text = capsys.readouterr().out
    (line,) = [line for line in text.splitlines() if line.startswith("job-1 ")]
    shown = " ".join(line.split()[1:])
    assert shown == "2 5.50 3.00 0.25 50% 160 1 0.250 2 1 0 0 released"
    assert "3 jobs, 6 turns (6 finished, 0 aborted), 0 preemptions" in text
    assert "6: 3 released, 3 returned" in text


def test_further_jobs_are_counted(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--top bounds the table, not the totals."""
    assert main([source, "--top", "1"]) == 0
    text = capsys.readouterr().out
    assert "... 2 more jobs (--top 3 shows all)" in text
    assert "3 jobs, 6 turns" in text


def test_json_is_one_document(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Totals, and each job with its turns."""
    assert main([source, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["totals"]["turns_evicted"] == 3
    assert [job["job_id"] for job in document["jobs"]] == ["job-0", "job-1", "job-2"]
    assert document["jobs"][0]["turn_rows"][1]["lost_tokens"] == 32


def test_one_job_can_be_picked(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--job names it."""
    assert main([source, "--json", "--job", "job-2"]) == 0
    assert [job["job_id"] for job in json.loads(capsys.readouterr().out)["jobs"]] == ["job-2"]


def test_an_unknown_job_is_bad_usage(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The message shows some that are known."""
    assert main([source, "--job", "job-9"]) == 2
    assert "no job 'job-9' in the record; it has 3: job-0" in capsys.readouterr().err


def test_the_picture_is_a_png(source: str, tmp_path: Path) -> None:
    """And is not overwritten without --force."""
    picture = tmp_path / "t.png"
    assert main([source, "--timeline", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main([source, "--timeline", str(picture)]) == 2
    assert main([source, "--timeline", str(picture), "--force"]) == 0


@pytest.mark.parametrize("name", ["t.svg", "t", "t.xyz"])
def test_a_picture_is_named_a_png(
    name: str, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other names are bad usage: nothing is written, least of all beside the name given."""
    (tmp_path / "t.png").write_text("kept")
    assert main([source, "--timeline", str(tmp_path / name)]) == 2
    assert "allowed is a name with .png" in capsys.readouterr().err
    assert (tmp_path / "t.png").read_text() == "kept"


def test_a_picture_that_cannot_be_written_is_said(
    source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table is shown all the same."""
    assert main([source, "--timeline", "/proc/none/t.png"]) == 1
    captured = capsys.readouterr()
    assert "cannot write /proc/none/t.png" in captured.err
    assert "3 jobs" in captured.out


def test_a_wrong_record_is_bad_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the reader's message."""
    assert main([str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl" in capsys.readouterr().err


def test_a_cut_off_line_is_mentioned(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The rest is shown."""
    path = Path(source)
    path.write_text(path.read_text()[:-9], encoding="utf-8")
    assert main([source]) == 0
    assert "the last line is incomplete" in capsys.readouterr().err
