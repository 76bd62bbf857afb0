"""Logs of other programs as jobs: a small sample of each kind, as these programs write it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agentkv.errors import InputError
from agentkv.evals.traces.logs import read_turns
from agentkv.evals.traces.turns import job_plans, jobs_among
from agentkv.evals.workload.plans import JobPlan, TurnPlan
from agentkv.evals.workload.workloads import make_workload
from tests.evals.trace_rows import own, write_lines


def stamp(second: float) -> str:
    return f"2026-03-01T10:{int(second // 60):02}:{second % 60:06.3f}Z"


def document(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value, indent=1))
    return path


def jobs_in(path: Path) -> list[JobPlan]:
    return job_plans(jobs_among(read_turns(path)))


def trajectory(*commands: str) -> dict[str, Any]:
    """A run of mini-swe-agent whose prompts are as long as its commands."""
    replies = [
        {
            "role": "assistant",
            "content": "",
            "extra": {
                "actions": [{"command": command}],
                "response": {"usage": {"prompt_tokens": 40 * len(command) + number}},
            },
        }
        for number, command in enumerate(commands)
    ]
    return {"trajectory_format": "mini-swe-agent-1.1", "messages": replies}


def claude(second: float, kind: str, content: Any, **more: Any) -> dict[str, Any]:
    message = {"role": kind, "content": content} | more.pop("message", {})
    common = {"sessionId": "s1", "isSidechain": False, "timestamp": stamp(second), "type": kind}
    return common | {"message": message} | more


def reply(fresh: int, cached: int, output: int, number: int) -> dict[str, Any]:
    usage = {
        "input_tokens": fresh,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }
    return {"message": {"id": f"msg_{number}", "usage": usage, "model": "m"}}


def use(name: str, call_id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(call_id: str) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": call_id, "content": "ok"}]


def test_claude_code(tmp_path: Path) -> None:
    """Lines of one message are one call, results end tools, a person's pause is one, a sub-agent of
    a file of its own is the child of the turn that waited for it, a compacted prompt is cut."""
    side = {"isSidechain": True, "agentId": "a7"}
    write_lines(
        tmp_path / "p" / "s1.jsonl",
        [
            {"type": "summary", "summary": "x", "leafUuid": "u"},
            claude(0.0, "user", "fix it"),
            claude(2.0, "assistant", [{"type": "text", "text": "so"}], **reply(1000, 0, 40, 1)),
            claude(
                2.5, "assistant", [use("Bash", "t1", command="pytest -q")], **reply(1000, 0, 50, 1)
            ),
            claude(9.5, "user", result("t1")),
            claude(10.0, "assistant", [use("Task", "t2")], **reply(30, 1040, 20, 2)),
            claude(20.0, "user", result("t2")),
            claude(21.0, "assistant", [{"type": "text", "text": "done"}], **reply(10, 1090, 5, 3)),
            claude(81.0, "user", "go on"),
            claude(82.0, "assistant", [{"type": "text", "text": "ok"}], **reply(100, 500, 5, 4)),
        ],
    )
    write_lines(
        tmp_path / "p" / "s1" / "subagents" / "agent-a7.jsonl",
        [
            claude(10.5, "user", "look", **side),
            claude(12.0, "assistant", [use("Grep", "t9")], **reply(300, 0, 10, 11), **side),
            claude(13.0, "user", result("t9"), **side),
            claude(15.0, "assistant", "found", **reply(20, 300, 10, 12), **side),
        ],
    )
    (job,) = jobs_in(tmp_path)
    first, second, third, last = job.turns
    assert first == TurnPlan(1000, 50, "pytest -q", 7.0)
    assert (second.added_tokens, second.command, second.tool_s) == (20, "Task", 0.0)
    (child,) = second.children
    assert (child.job_id, child.arrival_s) == ("s1/a7", 0.5)
    assert child.turns == (TurnPlan(300, 10, "Grep", 1.0), TurnPlan(10, 10, "", 0.0))
    assert (third.tool_s, third.pause_s) == (0.0, 60.0)
    assert (last.kept_tokens, last.added_tokens) == (500, 100)
    assert [job.prompt_tokens(turn) for turn in range(4)] == [1000, 1070, 1100, 600]


def codex(second: float, kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": stamp(second), "type": kind, "payload": payload}


def used(second: float, prompt: int, cached: int, output: int, total: int) -> dict[str, Any]:
    last = {"input_tokens": prompt, "cached_input_tokens": cached, "output_tokens": output}
    info = {"last_token_usage": last, "total_token_usage": {"total_tokens": total}}
    return codex(second, "event_msg", type="token_count", info=info)


def test_codex(tmp_path: Path) -> None:
    """A token count closes a call, the same total told again does not; outputs end tools."""
    arguments = json.dumps({"command": ["bash", "-lc", "make test"]})
    path = write_lines(
        tmp_path / "rollout-1.jsonl",
        [
            codex(0.0, "session_meta", id="thread-1", cwd="/", cli_version="0.58.0"),
            codex(0.1, "event_msg", type="user_message", message="go"),
            codex(0.2, "event_msg", type="token_count", info=None),
            codex(
                3.0,
                "response_item",
                type="function_call",
                name="shell",
                arguments=arguments,
                call_id="c1",
            ),
            used(3.0, 2000, 0, 60, 2060),
            codex(7.0, "response_item", type="function_call_output", call_id="c1", output="ok"),
            used(7.5, 2000, 0, 60, 2060),
            codex(9.0, "response_item", type="message", role="assistant", content=[]),
            used(9.0, 2100, 1920, 30, 4190),
        ],
    )
    (job,) = jobs_in(path)
    assert job.job_id == "thread-1"
    assert job.turns == (TurnPlan(2000, 60, "bash -lc 'make test'", 4.0), TurnPlan(40, 30, "", 0.0))


def test_mini_swe_agent(tmp_path: Path) -> None:
    """Usage is in the reply's `extra`; the observation's stamp ends the tool."""

    def said(role: str, at_s: float, **extra: Any) -> dict[str, Any]:
        return {"role": role, "content": "x" * 40, "extra": {"timestamp": at_s} | extra}

    def usage(prompt: int, output: int) -> dict[str, Any]:
        return {"usage": {"prompt_tokens": prompt, "completion_tokens": output}}

    path = document(
        tmp_path / "astropy-1.traj.json",
        {
            "trajectory_format": "mini-swe-agent-1.1",
            "info": {"exit_status": "Submitted"},
            "messages": [
                said("system", 1.0),
                said("user", 1.0),
                said("assistant", 5.0, response=usage(500, 30), actions=[{"command": "ls -R"}]),
                said("tool", 5.5, returncode=0),
                said("assistant", 8.0, response=usage(600, 20), actions=[{"command": "exit"}]),
            ],
        },
    )
    (job,) = jobs_in(path)
    assert (job.job_id, job.turns[0]) == ("astropy-1", TurnPlan(500, 30, "ls -R", 0.5))
    assert job.turns[1].added_tokens == 70


def span(number: int, parent: int, start_s: float, end_s: float, **facts: Any) -> dict[str, Any]:
    kinds = {int: "intValue", str: "stringValue"}
    return {
        "traceId": "t",
        "spanId": str(number),
        "parentSpanId": str(parent) if parent else "",
        "startTimeUnixNano": str(int(start_s * 1e9)),
        "endTimeUnixNano": str(int(end_s * 1e9)),
        "attributes": [
            {"key": f"gen_ai.{key.replace('__', '.')}", "value": {kinds[type(value)]: value}}
            for key, value in facts.items()
        ],
    }


def test_opentelemetry(tmp_path: Path) -> None:
    """An agent within an agent is its sub-agent; tools stand between the calls of a job."""

    def chat(number: int, parent: int, at_s: float, prompt: int) -> dict[str, Any]:
        tokens = {"usage__input_tokens": prompt, "usage__output_tokens": 5}
        return span(number, parent, at_s, at_s + 1.0, operation__name="chat", **tokens)

    spans = [
        span(1, 0, 0.0, 20.0, operation__name="invoke_agent"),
        chat(2, 1, 0.0, 100),
        span(3, 1, 1.5, 3.5, operation__name="execute_tool", tool__name="search"),
        chat(4, 1, 4.0, 150),
        span(5, 1, 5.5, 9.5, operation__name="invoke_agent"),
        chat(6, 5, 6.0, 70),
        chat(7, 1, 10.0, 200),
    ]
    path = write_lines(
        tmp_path / "spans.jsonl", [{"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}]
    )
    (job,) = jobs_in(path)
    assert [turn.added_tokens for turn in job.turns] == [100, 45, 45]
    assert (job.turns[0].command, job.turns[0].tool_s) == ("search", 2.0)
    (child,) = job.turns[1].children
    assert (child.arrival_s, child.turns) == (1.0, (TurnPlan(70, 5, "", 0.0),))


def test_a_folder_is_read_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Logs of any kind; one line says what is passed over, and a folder without one is refused."""
    (tmp_path / "notes.json").write_text("hello\n")
    with pytest.raises(InputError, match="no log in it that can be read"):
        read_turns(tmp_path)
    document(tmp_path / "a.traj.json", trajectory("ls"))
    write_lines(tmp_path / "deep" / "m.jsonl", [own("m")])
    assert [turn.job_id for turn in read_turns(tmp_path)] == ["a", "m"]
    said = f"agentkv: passed over: {tmp_path}/notes.json: of no known kind\n"
    assert capsys.readouterr().err == said


def test_a_folder_of_sessions_is_read_for_what_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A session that ends within a line counts up to there, one that goes on in another file once;
    what cannot be read or is empty is passed over."""
    rows = [claude(0.0, "user", "fix it")]
    for number in range(3):
        rows.append(claude(2.0 + number, "assistant", "so", **reply(9, 900, 40, number)))
    folder = tmp_path / "projects" / "-home-x"
    begun = write_lines(folder / "s0.jsonl", rows[:3]).read_text()
    write_lines(folder / "s1.jsonl", rows)
    (folder / "s2.jsonl").write_text(begun.replace('"s1"', '"s2"')[:-20])
    (folder / "s3.jsonl").write_text("")
    (folder / "s4.jsonl").symlink_to("/proc/self/mem")  # exists, and no user can read it so
    (folder / "t.jsonl").write_text(begun)
    turns = read_turns(tmp_path)
    assert sorted((turn.job_id, turn.turn) for turn in turns) == [
        *(("s1", number) for number in range(3)),
        ("s2", 0),
    ]
    (said,) = capsys.readouterr().err.splitlines()
    assert said.endswith("s3.jsonl: is empty and 1 more")


def test_two_runs_of_one_task_are_two_jobs(tmp_path: Path) -> None:
    """Files of one name in two folders: a job each, in its own order."""
    for run, command in (("run1", "ls"), ("run2", "make all tests")):
        (tmp_path / run).mkdir()
        document(tmp_path / run / "i.traj.json", trajectory(command, command))
    turns = read_turns(tmp_path)
    assert [(turn.job_id, turn.turn) for turn in turns] == [
        *(("i", 0), ("i", 1), ("i (2)", 0), ("i (2)", 1)),
    ]


def read_own(path: Path) -> list[tuple[str, tuple[TurnPlan, ...]]]:
    return [(job.job_id, job.turns) for job in job_plans(jobs_among(read_turns(path)))]


def test_a_line_a_turn(tmp_path: Path) -> None:
    """Turns come in any order, compressed or not; each adds what the prompt grew by, one token
    where it shrank; the last has no tool, and null is none."""
    rows = [own(turn=1, prompt_tokens=150), own(command=None, tool_s=None, output_tokens=0)]
    plain = write_lines(tmp_path / "t.jsonl", [*rows, own(turn=2, prompt_tokens=60)])
    packed = tmp_path / "t.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    expected = (
        *(TurnPlan(100, 1, "", 0.0), TurnPlan(49, 10, "ls", 0.5)),
        TurnPlan(1, 10, "", 0.0),
    )
    assert read_own(plain) == read_own(packed) == [("a", expected)]


def test_jobs_that_fit_are_used_again_under_another_name(tmp_path: Path) -> None:
    """Two jobs make five with ids of their own; one whose first turn is too long is not played."""
    rows = [own("a"), own("b"), own("long", prompt_tokens=5000)]
    path = write_lines(tmp_path / "t.jsonl", rows)
    options: dict[str, Any] = {"num_jobs": 5, "seed": 0, "jps": 1.0, "max_context_tokens": 1000}
    ids = [job.job_id for job in make_workload("trace", trace=path, **options).jobs]
    assert len(set(ids)) == 5
    assert {job_id.partition("#")[0] for job_id in ids} == {"a", "b"}


def test_tools_can_be_drawn_from_a_log(tmp_path: Path) -> None:
    """Command and seconds are drawn together; one without its time is not drawn."""
    rows = [own(command="make", tool_s=9.0), own(turn=1, command="cat", tool_s=None)]
    tools = str(write_lines(tmp_path / "tools.jsonl", rows))
    workload = make_workload("bfcl", num_jobs=3, seed=0, jps=1.0, tools=tools)
    drawn = {(turn.command, turn.tool_s) for job in workload.jobs for turn in job.turns[:-1]}
    assert drawn == {("make", 9.0)}


MINI = {"trajectory_format": "mini-swe-agent-1.1"}


@pytest.mark.parametrize(
    ("name", "content", "seen"),
    [
        ("x.json", {**MINI, "messages": 5}, "that does not fit"),
        ("x.json", {**MINI, "messages": []}, "without a call of a model"),
        ("x.json", {"resourceSpans": [{"scopeSpans": [{"spans": [{}]}]}]}, "that does not fit"),
        ("x.json", {"hello": 1, "b": 2}, "of no known kind; seen: fields hello, b;"),
        ("blank.jsonl", b"\n\n", "is empty"),
        ("broken.jsonl.gz", b"no gzip at all", "Not a gzipped file"),
        ("deep.jsonl", b"[" * 100_000 + b"\n", "of no known kind"),
        ("missing.jsonl", None, "no such file"),
        ("own.jsonl", [own(), {"job_id": "a", "turn": 1}], "line 2: prompt_tokens: Field required"),
        ("own.jsonl", [own(), own(prompt_tokens="many")], "line 2: prompt_tokens: .*seen: many"),
        ("own.jsonl", [own(), own(tool_s=-1.0)], "line 2: tool_s: .*seen: -1.0"),
        ("own.jsonl", [own(), [1, 2]], "line 2: .*should be an object"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, content: Any, seen: str) -> None:
    """One error with the file, what it was taken for, and the line and field at fault."""
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, list):
        write_lines(path, content)
    elif content is not None:
        document(path, content)
    with pytest.raises(InputError, match=f"{name}: .*{seen}"):
        read_turns(path)
