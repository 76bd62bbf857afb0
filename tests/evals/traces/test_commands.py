"""Trace files: commands with their durations, and whole jobs."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentkv.errors import InputError
from agentkv.evals.traces.commands import read_trace
from agentkv.evals.traces.formats import read_turns
from agentkv.evals.traces.turns import job_plans, jobs_among
from agentkv.evals.workload.plans import TurnPlan
from agentkv.evals.workload.workloads import make_workload
from tests.evals.trace_rows import write_lines

LINE = {"session": "a", "order": 1.0, "command": "ls", "duration_s": 0.5}
TURN = {"job_id": "j", "command": "pytest", "tool_s": 2.5, "tool_s_from": "inner"}


def job_line(job_id: str = "a", turn: int = 0, **fields: Any) -> dict[str, Any]:
    values = {"prompt_tokens": 100, "output_tokens": 10, "command": "ls", "tool_s": 0.5}
    return {"job_id": job_id, "turn": turn} | values | fields


def read_traced_jobs(path: Path) -> list[tuple[str, tuple[TurnPlan, ...]]]:
    return [(job.job_id, job.turns) for job in job_plans(jobs_among(read_turns(path)))]


def without(name: str, line: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in line.items() if key != name})


def test_a_gzipped_trace_is_read_like_a_plain_one(tmp_path: Path) -> None:
    """The suffix says whether commands and jobs are compressed; commands come in time order."""
    lines = [LINE | {"order": order, "command": str(order)} for order in (3.0, 1.0, 2.0)]
    plain = write_lines(tmp_path / "trace.jsonl", lines)
    packed = tmp_path / "trace.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (packed, plain):
        assert [row.command for row in read_trace(path).rows] == ["1.0", "2.0", "3.0"]
    packed.write_bytes(gzip.compress(json.dumps(job_line()).encode()))
    assert read_traced_jobs(packed)[0][0] == "a"


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
def test_a_line_gives_a_duration_or_a_bound(
    tmp_path: Path, fields: dict[str, object], duration_s: float, bound: str
) -> None:
    """A censored command took at most 3 s, one at its time-out at least that; others are exact."""
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
    ("name", "content", "seen"),
    [
        ("empty.jsonl", b"", "is empty"),
        ("blank.jsonl", b"\n\n", "is empty"),
        ("broken.jsonl.gz", b"no gzip at all", "Not a gzipped file"),
        ("cut.jsonl.gz", gzip.compress(b"x" * 1000, mtime=0)[:20], "Compressed file ended"),
        ("deep.jsonl", b"[" * 100_000 + b"\n", "of no known kind"),
        ("latin.jsonl", b'{"session": "\xe9"}\n', "seen: fields session"),
        ("missing.jsonl", None, "no such file"),
    ],
)
def test_an_unusable_file_is_named(
    tmp_path: Path, name: str, content: bytes | None, seen: str
) -> None:
    """A file that is missing, empty, not gzip, cut short or not UTF-8 gives one error."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name) as raised:
        read_trace(tmp_path / name)
    assert seen in str(raised.value)


def test_a_turn_adds_what_the_prompt_grew_by(tmp_path: Path) -> None:
    """Turns come in any order; a last turn loses its tool, and null is no tool."""
    first = job_line(command=None, tool_s=None, output_tokens=0)
    lines = [job_line(turn=1, prompt_tokens=150), first]
    assert read_traced_jobs(write_lines(tmp_path / "t.jsonl", lines)) == [
        ("a", (TurnPlan(100, 1, "", 0.0), TurnPlan(49, 10, "", 0.0)))
    ]


def test_a_context_that_shrank_grows_by_one_token(tmp_path: Path) -> None:
    """The context is back at the recorded length as soon as that is longer again."""
    prompts = (100, 60, 200)
    lines = [job_line(turn=turn, prompt_tokens=tokens) for turn, tokens in enumerate(prompts)]
    _, turns = read_traced_jobs(write_lines(tmp_path / "t.jsonl", lines))[0]
    assert [turn.added_tokens for turn in turns] == [100, 1, 79]


def test_jobs_that_fit_are_used_again_under_another_name(tmp_path: Path) -> None:
    """Two jobs make five with ids of their own; one whose first turn is too long is not played."""
    lines = [job_line("a"), job_line("b"), job_line("long", prompt_tokens=5000)]
    path = write_lines(tmp_path / "t.jsonl", lines)
    options: dict[str, Any] = {"num_jobs": 5, "seed": 0, "jps": 1.0, "max_context_tokens": 1000}
    ids = [job.job_id for job in make_workload("trace", trace=path, **options).jobs]
    assert len(set(ids)) == 5
    assert {job_id.partition("#")[0] for job_id in ids} == {"a", "b"}


def test_tools_can_be_drawn_from_a_file_of_measured_commands(tmp_path: Path) -> None:
    """Command and seconds are drawn together, and commands with a mere bound are not drawn."""
    measured = LINE | {"command": "make", "duration_s": 9.0}
    bounded = measured | {"command": "cat", "censored": True}
    tools = write_lines(tmp_path / "tools.jsonl", [measured, bounded])
    workload = make_workload("bfcl", num_jobs=3, seed=0, jps=1.0, tools=tools)
    drawn = {(turn.command, turn.tool_s) for job in workload.jobs for turn in job.turns[:-1]}
    assert drawn == {("make", 9.0)}


@pytest.mark.parametrize(
    ("good", "text", "seen"),
    [
        (LINE, "{not json", "is not JSON"),
        (LINE, "[1, 2]", "is no JSON object"),
        (LINE, json.dumps({"a": 1}), "command"),
        (LINE, json.dumps(LINE | {"duration_s": -1.0}), "-1.0"),
        (LINE, json.dumps(LINE | {"duration_s": None}), "duration_s is null"),
        (LINE, json.dumps(LINE | {"duration_s": float("nan")}), "nan"),
        (LINE, json.dumps(LINE | {"command": 7}), "command: "),
        (LINE, json.dumps(TURN | {"tool_s": "long"}), "'long'"),
        (job_line(), without("tool_s", job_line()), "tool_s"),
        (job_line(), without("turn", job_line()), "turn"),
        (job_line(), json.dumps(job_line("b", prompt_tokens="many")), "prompt_tokens"),
        (job_line(), json.dumps(job_line("b", prompt_tokens=0)), "prompt_tokens"),
        (job_line(), json.dumps(job_line("b", tool_s=-1.0)), "tool_s"),
        (job_line(), json.dumps(job_line()), "turn 0 of job 'a' is there already"),
    ],
)
def test_a_misshapen_line_is_named(
    tmp_path: Path, good: dict[str, Any], text: str, seen: str
) -> None:
    """The error has the file, the line, the field and what was seen."""
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{json.dumps(good)}\n{text}\n")
    with pytest.raises(InputError, match=rf"trace\.jsonl: line 2.*{re.escape(seen)}"):
        (read_trace if good is LINE else read_traced_jobs)(path)


def test_a_file_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    """The message has what was seen, and the fields that a line needs."""
    with pytest.raises(InputError, match=r"seen: fields a, b;.*prompt_tokens"):
        read_traced_jobs(write_lines(tmp_path / "t.jsonl", [{"a": 1, "b": 2}]))
