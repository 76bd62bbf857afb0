"""Facts about reading trace files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from agentkv.evals.workload.traces import TraceError, read_trace

from .trace_rows import row, synthetic_lines, write_lines

LINE = {"session": "a", "order": 1.0, "command": "ls", "duration_s": 0.5}
TURN = {"job_id": "j", "command": "pytest", "tool_s": 2.5, "tool_s_from": "inner"}


def test_a_gzipped_trace_is_read_like_a_plain_one(tmp_path: Path) -> None:
    """The name's ending says which."""
    plain = write_lines(tmp_path / "trace.jsonl", synthetic_lines(20))
    packed = tmp_path / "trace.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    commands = [r.command for r in read_trace(packed).rows]
    assert commands == [r.command for r in read_trace(plain).rows]


def test_rows_come_in_time_order(tmp_path: Path) -> None:
    """Whatever the order of the lines."""
    lines = [LINE | {"order": order, "command": str(order)} for order in (3.0, 1.0, 2.0)]
    rows = read_trace(write_lines(tmp_path / "trace.jsonl", lines)).rows
    assert [r.command for r in rows] == ["1.0", "2.0", "3.0"]


@pytest.mark.parametrize(
    ("fields", "duration_s", "bound"),
    [
        ({}, 0.5, "exact"),
        ({"duration_s": None, "censored": True}, 3.0, "upper"),
        ({"duration_s": 90.0, "censored": True}, 3.0, "upper"),
        ({"duration_s": 1.5, "censored": True}, 1.5, "upper"),
        ({"duration_s": 60.2, "is_error": True, "timeout_s": 60.0}, 60.2, "lower"),
        ({"duration_s": 59.0, "is_error": True, "timeout_s": 60.0}, 59.0, "exact"),
        ({"duration_s": 60.2, "is_error": False, "timeout_s": 60.0}, 60.2, "exact"),
    ],
)
def test_what_a_line_says_of_the_duration(
    tmp_path: Path, fields: dict[str, object], duration_s: float, bound: str
) -> None:
    """Censored: at most 3 s; an error at its time-out: at least so long; else measured."""
    (only,) = read_trace(write_lines(tmp_path / "trace.jsonl", [LINE | fields])).rows
    assert (only.duration_s, only.bound) == (duration_s, bound)


def test_only_measured_turns_count(tmp_path: Path) -> None:
    """Constants, estimates and turns without a command are skipped and counted."""
    lines = [
        TURN,
        TURN | {"tool_s_from": "timeout", "tool_s": 30.0},
        TURN | {"tool_s_from": "const_quick"},
        TURN | {"tool_s_from": "inner", "command": None},
        TURN | {"tool_s_from": None, "tool_s": None},
    ]
    trace = read_trace(write_lines(tmp_path / "turns.jsonl", lines))
    assert [(r.duration_s, r.bound) for r in trace.rows] == [(2.5, "exact"), (30.0, "lower")]
    assert trace.num_skipped == 3


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("{not json", "line 2 is not JSON"),
        ("[1, 2]", "line 2 is no JSON object"),
        (json.dumps({"a": 1}), "session"),
        (json.dumps(LINE | {"duration_s": -1.0}), "-1.0"),
        (json.dumps(LINE | {"duration_s": None}), "duration_s is null"),
        (json.dumps(LINE | {"duration_s": float("nan")}), "nan"),
        (json.dumps(LINE | {"command": 7}), "command: "),
        (json.dumps(TURN | {"tool_s": "long"}), "'long'"),
    ],
)
def test_a_misshapen_line_is_named(tmp_path: Path, text: str, seen: str) -> None:
    """The error has the file, the line and what was seen."""
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{json.dumps(LINE)}\n{text}\n")
    with pytest.raises(TraceError, match=r"trace\.jsonl: line 2") as raised:
        read_trace(path)
    assert seen in str(raised.value)


@pytest.mark.parametrize(
    ("name", "content", "seen"),
    [
        ("empty.jsonl", b"", "no measured command"),
        ("blank.jsonl", b"\n\n", "no measured command"),
        ("broken.jsonl.gz", b"no gzip at all", "cannot be read"),
        ("cut.jsonl.gz", gzip.compress(b"x" * 1000, mtime=0)[:20], "cannot be read"),
        ("deep.jsonl", b"[" * 100_000 + b"\n", "line 1 is not JSON"),
        ("latin.jsonl", b'{"session": "\xe9"}\n', "line 1 is not UTF-8"),
    ],
)
def test_an_unusable_file_is_named(tmp_path: Path, name: str, content: bytes, seen: str) -> None:
    """Empty, not gzip, cut short, or not UTF-8: one error with the name."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceError, match=name) as raised:
        read_trace(tmp_path / name)
    assert seen in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The system's reason is in the message."""
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "nothing.jsonl")


@pytest.mark.parametrize(
    ("duration_s", "bound", "answers"),
    [
        (3.0, "exact", {2.0: True, 3.0: False, 5.0: False}),
        (3.0, "upper", {1.0: None, 2.0: None, 3.0: False, 5.0: False}),
        (3.0, "lower", {2.0: True, 3.0: True, 5.0: None}),
    ],
)
def test_a_bound_answers_only_what_it_can(
    duration_s: float, bound: str, answers: dict[float, bool | None]
) -> None:
    """`is_over` is None where the bound leaves it open."""
    known = row(duration_s, bound=bound)
    assert {t: known.is_over(t) for t in answers} == answers
