"""Facts about the demo: the suite from the agent's first turn to the report, and its server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentkv.evals.swebench import command
from agentkv.evals.swebench.demo import Solution, commands, solution_server
from agentkv.testing import ScriptedServer
from tests.evals.swebench.run_folders import SUITE


@pytest.mark.slow
@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize(("solution", "counts"), [("gold", (6, 0)), ("wrong", (0, 6))])
def test_solutions_decide_what_is_resolved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], solution: str, counts: tuple[int, int]
) -> None:
    """Right solutions resolve all, wrong ones none, through the agent, sandbox and harness."""
    flags = ["demo", "--model", f"scripted:{solution}", "--out", str(tmp_path / "run"), "--json"]
    assert command.main(flags) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["resolved"], document["unresolved"]) == counts
    assert document["mode"] == "daemon-less"


def ask(server: ScriptedServer, problem: str, num_replies: int, **fields: Any) -> httpx.Response:
    """Ask for a reply in a conversation that has this many already."""
    task = {"role": "user", "content": f"Solve this:\n{problem}\nThank you."}
    turn = [{"role": "assistant", "content": "ls"}, {"role": "user", "content": "output"}]
    messages = [{"role": "system", "content": "You are able."}, task, *turn * num_replies]
    body = {"model": server.model, "messages": messages, **fields}
    return httpx.post(f"{server.base_url}/chat/completions", json=body)


@pytest.mark.parametrize("solution", ["gold", "wrong"])
def test_the_server_plays_the_commands_in_order(solution: Solution) -> None:
    """The problem tells the instance, and the replies so far tell the turn."""
    with solution_server(SUITE, solution) as server:
        for instance in SUITE:
            played = []
            for turn in range(4):
                answer = ask(server, instance.problem_statement, turn, tools=[{}]).json()
                call = answer["choices"][0]["message"]["tool_calls"][0]
                played.append(json.loads(call["function"]["arguments"])["command"])
            assert tuple(played) == commands(instance, solution)
        assert ask(server, "hello", 0).status_code == 400
        models = httpx.get(f"{server.base_url}/models").json()["data"]
        assert [model["id"] for model in models] == [f"scripted-{solution}"]


def test_an_agent_without_tools_gets_a_fence() -> None:
    """mini-swe-agent's text mode reads the command from a fenced block."""
    with solution_server(SUITE, "gold") as server:
        answer = ask(server, SUITE[0].problem_statement, 0)
    message = answer.json()["choices"][0]["message"]
    assert "```mswea_bash_command\ngit status --short && ls\n```" in message["content"]
    assert not message.get("tool_calls")
