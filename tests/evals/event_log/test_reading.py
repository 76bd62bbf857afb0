"""Reading the server's record: files, folders, saved answers, and what is wrong with them."""

import gzip
import json
from pathlib import Path

import pytest

from agentkv.errors import InputError
from agentkv.evals.event_log import read_record
from tests.evals.event_log.rows import TWO_TURNS, arrival, write_record


def test_files_answers_and_folders_hold_the_same_events(tmp_path: Path) -> None:
    """A plain file, a gzipped one, a saved answer and their folders read alike, job by job."""
    name = "scheduler_timestamps.jsonl"
    (tmp_path / "server").mkdir()
    (tmp_path / "run").mkdir()
    plain = write_record(tmp_path / "server" / name, a=TWO_TURNS, b=TWO_TURNS[:3])
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    answer = tmp_path / "run" / "timestamps.json"
    answer.write_text(json.dumps({"jobs": {"a": TWO_TURNS, "b": TWO_TURNS[:3]}}))
    expected = read_record(str(plain)).jobs
    assert [(job.job_id, len(job.entries)) for job in expected] == [("a", len(TWO_TURNS)), ("b", 3)]
    for source in (packed, answer, tmp_path / "server", tmp_path / "run"):
        assert read_record(str(source)).jobs == expected


def test_a_folder_with_two_records_is_not_guessed_from(tmp_path: Path) -> None:
    """The message about a folder with two logs names both."""
    for name in ("scheduler_timestamps.jsonl", "scheduler_timestamps_2.jsonl"):
        write_record(tmp_path / name, a=TWO_TURNS)
    with pytest.raises(InputError, match=r"timestamps\.jsonl, scheduler_timestamps_2\.jsonl"):
        read_record(str(tmp_path))


def test_events_of_two_engines_are_kept_apart(tmp_path: Path) -> None:
    """A job on two engines is two jobs, since each engine has its own clock."""
    answer = tmp_path / "answer.json"
    events = [{**arrival(1.0, 1, 10), "engine": engine} for engine in (0, 1)]
    answer.write_text(json.dumps({"jobs": {"a": events}}), encoding="utf-8")
    assert [(job.job_id, job.engine) for job in read_record(str(answer)).jobs] == [
        *(("a", 0), ("a", 1))
    ]


def test_a_last_line_cut_off_is_left_out(tmp_path: Path) -> None:
    """The half-written line that a killed server leaves is not read."""
    path = write_record(tmp_path / "r.jsonl", a=TWO_TURNS)
    path.write_text(path.read_text()[:-20], encoding="utf-8")
    record = read_record(str(path))
    assert record.is_cut
    assert len(record.jobs[0].entries) == len(TWO_TURNS) - 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no event of any job"),
        ("{}", "no jobs with lists of events"),
        ('{"jobs": {}}', "no event of any job"),
        ('{"jobs": {"a": 7}}', "no jobs with lists of events"),
        ("[1, 2]\n", r"line 1 is no JSON object: \[1, 2\]"),
        ("no JSON\n{}\n", "line 1 is not JSON"),
        ('{"event": "preempted", "at_s": 1.0}\n', "does not fit: KeyError: 'job_id'"),
        ('{"job_id": "a", "event": "preempted"}\n', "does not fit: KeyError: 'at_s'"),
    ],
)
def test_a_wrong_record_is_named_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    """The message has the file, and what does not fit."""
    path = tmp_path / "r.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_record(str(path))


def test_a_packed_file_that_is_broken_is_named(tmp_path: Path) -> None:
    """Broken bytes give an error with the file's name, no traceback."""
    (tmp_path / "r.gz").write_bytes(b"\x1f\x8b bad")
    with pytest.raises(InputError, match=r"r\.gz: "):
        read_record(str(tmp_path / "r.gz"))
