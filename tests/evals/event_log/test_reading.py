"""Reading the server's record: files, folders, saved answers, and what is wrong with them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from agentkv.errors import AgentKVServerError, InputError
from agentkv.evals.event_log import LoggedJob, read_record
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
    expected = read_record(str(plain)).events
    assert {key: len(events) for key, events in expected.items()} == {
        LoggedJob("a"): len(TWO_TURNS),
        LoggedJob("b"): 3,
    }
    for source in (packed, answer, tmp_path / "server", tmp_path / "run"):
        assert read_record(str(source)).events == expected


def test_a_folder_with_two_records_is_not_guessed_from(tmp_path: Path) -> None:
    """The message about a folder with two logs names both."""
    for name in ("scheduler_timestamps.jsonl", "scheduler_timestamps_2.jsonl"):
        write_record(tmp_path / name, a=TWO_TURNS)
    with pytest.raises(InputError, match=r"timestamps\.jsonl, scheduler_timestamps_2\.jsonl"):
        read_record(str(tmp_path))


def test_events_of_two_engines_are_kept_apart(tmp_path: Path) -> None:
    """A job on two engines is two keys, since each engine has its own clock."""
    answer = tmp_path / "answer.json"
    events = [{**arrival(1.0, 1, 10), "engine": engine} for engine in (0, 1)]
    answer.write_text(json.dumps({"jobs": {"a": events}}), encoding="utf-8")
    assert list(read_record(str(answer)).events) == [LoggedJob("a", 0), LoggedJob("a", 1)]


def test_a_last_line_cut_off_is_left_out(tmp_path: Path) -> None:
    """The half-written line that a killed server leaves is not read."""
    path = write_record(tmp_path / "r.jsonl", a=TWO_TURNS)
    path.write_text(path.read_text()[:-20], encoding="utf-8")
    record = read_record(str(path))
    assert record.is_cut
    assert len(record.events[LoggedJob("a")]) == len(TWO_TURNS) - 1


OF_A = '{"job_id": "a", "event": '
NO_NUMBER = "at_s must be a number"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no event of any job"),
        ("{}", "'jobs': needs a JSON object, got 'None'"),
        ('{"jobs": {}}', "no event of any job"),
        ("[1, 2]\n", r"line 1 is no JSON object: \[1, 2\]"),
        ("no JSON\n{}\n", "line 1 is not JSON"),
        ('{"event": "preempted", "at_s": 1.0}\n', "line 1: job_id must be a string, got None"),
        (OF_A + '3, "at_s": 1}\n', "line 1: event must be a string, got 3"),
        ("\n" + OF_A + '"preempted"}\n', f"line 2: preempted: {NO_NUMBER}"),
        (OF_A + '"pinned", "at_s": 1, "ttl_s": 2}\n', "pinned: blocks must be .*, got nothing"),
        (OF_A + '"preempted", "at_s": NaN}\n', f"{NO_NUMBER}, got nan"),
        (OF_A + f'"preempted", "at_s": {10**400}}}\n', f"{NO_NUMBER}, got 1000"),
        (OF_A + '"tool_finished", "at_s": 1, "duration_s": "2"}\n', "duration_s must .*, got '2'"),
        ('{"jobs": {"a": [{"event": "preempted"}]}}', "job 'a', event 1: preempted: at_s"),
        ('{"jobs": {"a": 7}}', "job 'a', event 1: needs a JSON object, got '7'"),
    ],
)
def test_a_wrong_record_is_named_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    """The message has file, line or job, the field, and what was seen."""
    path = tmp_path / "r.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_record(str(path))


@pytest.mark.parametrize(
    ("message", "content"),
    [("r.jsonl: no text", b"\xff\xfe\n"), ("r.gz: ", b"\x1f\x8b bad"), ("no.jsonl: no such", None)],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, message: str, content: bytes | None
) -> None:
    """Broken bytes and a missing file give an error with the name, no traceback."""
    path = tmp_path / message.partition(":")[0]
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_record(str(path))


def test_an_unreachable_server_is_an_error() -> None:
    """A port on which nobody listens gives an error of the server."""
    with pytest.raises(AgentKVServerError, match="no answer"):
        read_record("http://127.0.0.1:9")
