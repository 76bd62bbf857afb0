"""Reading the server's record: files, folders, saved answers, and what is wrong with them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from agentkv.errors import AgentKVServerError
from agentkv.evals.event_log.reading import JobKey, RecordError, read_record
from tests.evals.event_log.rows import TWO_TURNS, arrival, write_record


def test_a_file_is_read_job_by_job(tmp_path: Path) -> None:
    """Events stay in order under their job."""
    record = read_record(str(write_record(tmp_path / "r.jsonl", a=TWO_TURNS, b=TWO_TURNS[:3])))
    assert [len(events) for events in record.events.values()] == [len(TWO_TURNS), 3]
    assert list(record.events) == [JobKey("a"), JobKey("b")]


def test_a_saved_answer_equals_the_file(tmp_path: Path) -> None:
    """GET /v1/agentkv/timestamps and scheduler_timestamps.jsonl hold the same events."""
    file = read_record(str(write_record(tmp_path / "r.jsonl", a=TWO_TURNS)))
    answer = tmp_path / "answer.json"
    answer.write_text(json.dumps({"jobs": {"a": TWO_TURNS}}), encoding="utf-8")
    assert read_record(str(answer)).events == file.events


def test_a_gzipped_file_is_read(tmp_path: Path) -> None:
    """Records grow long and are kept compressed."""
    plain = write_record(tmp_path / "r.jsonl", a=TWO_TURNS)
    packed = tmp_path / "r.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_record(str(packed)).events == read_record(str(plain)).events


def test_a_folder_stands_for_the_one_record_in_it(tmp_path: Path) -> None:
    """What was given as --run-output-dir can be given here."""
    write_record(tmp_path / "scheduler_timestamps.jsonl", a=TWO_TURNS)
    assert list(read_record(str(tmp_path)).events) == [JobKey("a")]


def test_the_folder_of_a_run_stands_for_its_record(tmp_path: Path) -> None:
    """`agentkv bench --out` keeps the server's answer as timestamps.json."""
    events = [{**arrival(1.0, 1, 10)}]
    (tmp_path / "timestamps.json").write_text(json.dumps({"jobs": {"a": events}}))
    assert list(read_record(str(tmp_path)).events) == [JobKey("a")]


def test_a_folder_with_two_records_is_not_guessed_from(tmp_path: Path) -> None:
    """The message names both."""
    for name in ("scheduler_timestamps.jsonl", "scheduler_timestamps_2.jsonl"):
        write_record(tmp_path / name, a=TWO_TURNS)
    with pytest.raises(RecordError, match=r"timestamps\.jsonl, scheduler_timestamps_2\.jsonl"):
        read_record(str(tmp_path))


def test_events_of_two_engines_are_kept_apart(tmp_path: Path) -> None:
    """Each engine has its own clock."""
    answer = tmp_path / "answer.json"
    events = [{**arrival(1.0, 1, 10), "engine": engine} for engine in (0, 1)]
    answer.write_text(json.dumps({"jobs": {"a": events}}), encoding="utf-8")
    assert list(read_record(str(answer)).events) == [JobKey("a", 0), JobKey("a", 1)]


def test_a_last_line_cut_off_is_left_out(tmp_path: Path) -> None:
    """A server that was killed leaves a half-written line."""
    path = write_record(tmp_path / "r.jsonl", a=TWO_TURNS)
    path.write_text(path.read_text()[:-20], encoding="utf-8")
    record = read_record(str(path))
    assert record.is_cut
    assert len(record.events[JobKey("a")]) == len(TWO_TURNS) - 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no event of any job"),
        ("{}", "'jobs': needs a JSON object, got 'None'"),
        ('{"jobs": {}}', "no event of any job"),
        ("[1, 2]\n", r"line 1: needs a JSON object, got '\[1, 2\]'"),
        ("no JSON\n{}\n", "line 1: needs a JSON object"),
        ('{"event": "preempted", "at_s": 1.0}\n', "line 1: job_id must be a string, got None"),
        ('{"job_id": "a", "event": 3, "at_s": 1}\n', "line 1: event must be a string, got 3"),
        ('\n{"job_id": "a", "event": "preempted"}\n', "line 2: preempted: at_s must be a number"),
        (
            '{"job_id": "a", "event": "pinned", "at_s": 1, "ttl_s": 2}\n',
            "line 1: pinned: blocks must be a number, got nothing",
        ),
        (
            '{"job_id": "a", "event": "preempted", "at_s": NaN}\n',
            "at_s must be a number, got nan",
        ),
        (
            f'{{"job_id": "a", "event": "preempted", "at_s": {10**400}}}\n',
            "at_s must be a number, got 1000",
        ),
        (
            '{"job_id": "a", "event": "tool_finished", "at_s": 1, "duration_s": "2"}\n',
            "tool_finished: duration_s must be a number, got '2'",
        ),
        ('{"jobs": {"a": [{"event": "preempted"}]}}', "job 'a', event 1: preempted: at_s"),
        ('{"jobs": {"a": 7}}', "job 'a', event 1: needs a JSON object, got '7'"),
    ],
)
def test_a_wrong_record_is_named_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    """File, line or job, field, and what was seen."""
    path = tmp_path / "r.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecordError, match=message):
        read_record(str(path))


@pytest.mark.parametrize("content", [b"\xff\xfe\n", b"\x1f\x8b broken"])
def test_bytes_that_are_no_text_are_an_error(tmp_path: Path, content: bytes) -> None:
    """Neither a traceback nor silence."""
    path = tmp_path / ("r.gz" if content.startswith(b"\x1f") else "r.jsonl")
    path.write_bytes(content)
    with pytest.raises(RecordError, match="cannot read this record"):
        read_record(str(path))


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """The message names it."""
    with pytest.raises(RecordError, match=r"none\.jsonl"):
        read_record(str(tmp_path / "none.jsonl"))


def test_an_unreachable_server_is_an_error() -> None:
    """A port on which nobody listens."""
    with pytest.raises(AgentKVServerError, match="no answer"):
        read_record("http://127.0.0.1:9")
