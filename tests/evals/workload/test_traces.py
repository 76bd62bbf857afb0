"""Facts about jobs read from a trace file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agentkv.evals.workload.plans import TurnPlan, WorkloadError
from agentkv.evals.workload.traces import read_traced_jobs
from agentkv.evals.workload.workloads import make_workload


def line(job_id: str = "a", turn: int = 0, **fields: Any) -> dict[str, Any]:
    values = {"prompt_tokens": 100, "output_tokens": 10, "command": "ls", "tool_s": 0.5}
    return {"job_id": job_id, "turn": turn} | values | fields


def write(path: Path, *lines: Any) -> Path:
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in lines)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_turn_adds_what_the_prompt_grew_by(tmp_path: Path) -> None:
    """Prompt minus all that came before; the last turn loses its tool."""
    path = write(tmp_path / "t.jsonl", line(), line(turn=1, prompt_tokens=150))
    assert read_traced_jobs(path) == [
        ("a", (TurnPlan(100, 10, "ls", 0.5), TurnPlan(40, 10, "", 0.0)))
    ]


def test_a_context_that_shrank_grows_by_one_token(tmp_path: Path) -> None:
    """And is back at the recorded length as soon as that is longer again."""
    prompts = (100, 60, 200)
    lines = [line(turn=turn, prompt_tokens=tokens) for turn, tokens in enumerate(prompts)]
    _, turns = read_traced_jobs(write(tmp_path / "t.jsonl", *lines))[0]
    assert [turn.added_tokens for turn in turns] == [100, 1, 79]


def test_turns_may_come_in_any_order_and_lack_a_tool(tmp_path: Path) -> None:
    """Sorted by number; null command and seconds are no tool; zero outputs count as one token."""
    first = line(command=None, tool_s=None, output_tokens=0)
    path = write(tmp_path / "t.jsonl", line(turn=1, prompt_tokens=150), first)
    _, turns = read_traced_jobs(path)[0]
    assert turns[0] == TurnPlan(100, 1, "", 0.0)


def test_a_gzipped_file_is_read(tmp_path: Path) -> None:
    """By its suffix."""
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(line()).encode()))
    assert read_traced_jobs(path)[0][0] == "a"


def test_jobs_are_used_again_under_another_name(tmp_path: Path) -> None:
    """Two jobs make five, each with an id of its own."""
    path = write(tmp_path / "t.jsonl", line("a"), line("b"))
    workload = make_workload("trace", trace=path, num_jobs=5, seed=0, jps=1.0)
    ids = [job.job_id for job in workload.jobs]
    assert len(set(ids)) == 5
    assert {job_id.partition("#")[0] for job_id in ids} == {"a", "b"}


def test_jobs_too_long_are_left_out(tmp_path: Path) -> None:
    """Those whose first turn alone is over the limit."""
    path = write(tmp_path / "t.jsonl", line("a", prompt_tokens=5000), line("b"))
    options = {"trace": path, "num_jobs": 2, "seed": 0, "jps": 1.0, "max_context_tokens": 1000}
    workload = make_workload("trace", **options)
    assert [job.job_id for job in workload.jobs] == ["b", "b#2"]


def test_tools_can_be_drawn_from_a_file_of_measured_commands(tmp_path: Path) -> None:
    """Command and seconds together; what is known by a bound only is not drawn."""
    measured = {"session": "s", "order": 1.0, "command": "make", "duration_s": 9.0}
    bounded = measured | {"command": "cat", "censored": True}
    tools = write(tmp_path / "tools.jsonl", measured, bounded)
    workload = make_workload("bfcl", num_jobs=3, seed=0, jps=1.0, tools=tools)
    drawn = {(turn.command, turn.tool_s) for job in workload.jobs for turn in job.turns[:-1]}
    assert drawn == {("make", 9.0)}


@pytest.mark.parametrize(
    ("row", "seen"),
    [
        ({key: value for key, value in line().items() if key != "tool_s"}, "line 2: tool_s"),
        ({key: value for key, value in line().items() if key != "turn"}, "line 2: turn"),
        (line("b", prompt_tokens="many"), "line 2: prompt_tokens"),
        (line("b", prompt_tokens=0), "line 2: prompt_tokens"),
        (line("b", tool_s=-1.0), "line 2: tool_s"),
        (line(), "line 2: turn 0 of job 'a' is there already"),
        ("[1]", "line 2 is no JSON object"),
        ("{", "line 2 is not JSON"),
    ],
)
def test_a_misshapen_line_is_named(tmp_path: Path, row: Any, seen: str) -> None:
    """File, line and field are in the message."""
    path = write(tmp_path / "t.jsonl", line(), row)
    with pytest.raises(WorkloadError) as caught:
        read_traced_jobs(path)
    assert str(path) in str(caught.value)
    assert seen in str(caught.value)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    """With the fields that a line needs."""
    with pytest.raises(WorkloadError, match="prompt_tokens"):
        read_traced_jobs(write(tmp_path / "t.jsonl"))
