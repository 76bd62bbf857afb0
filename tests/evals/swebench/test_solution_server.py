"""Facts about the server that plays solutions: it knows the instance and the turn by itself."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from agentkv.evals.swebench.scripted_server import Solution, SolutionServer, commands
from tests.evals.swebench.run_folders import SUITE


def ask(server: SolutionServer, messages: list[dict[str, Any]], **fields: Any) -> httpx.Response:
    """One request for a chat reply."""
    body = {"model": server.model, "messages": messages, **fields}
    return httpx.post(f"{server.base_url}/chat/completions", json=body)


def conversation(problem: str, num_replies: int) -> list[dict[str, Any]]:
    """A conversation that has so many replies already."""
    task = {"role": "user", "content": f"Solve this:\n{problem}\nThank you."}
    turn = [{"role": "assistant", "content": "ls"}, {"role": "user", "content": "output"}]
    return [{"role": "system", "content": "You are able."}, task, *turn * num_replies]


@pytest.mark.parametrize("solution", ["gold", "wrong"])
def test_it_plays_the_commands_of_the_instance_in_order(solution: Solution) -> None:
    """The problem tells the instance, the replies so far tell the turn."""
    with SolutionServer(SUITE, solution) as server:
        for instance in SUITE:
            played = []
            for turn in range(4):
                messages = conversation(instance.problem_statement, turn)
                message = ask(server, messages, tools=[{}]).json()["choices"][0]["message"]
                arguments = message["tool_calls"][0]["function"]["arguments"]
                played.append(json.loads(arguments)["command"])
            assert tuple(played) == commands(instance, solution)


def test_an_agent_without_tools_gets_a_fence() -> None:
    """mini-swe-agent's text mode reads the command from a block of its own kind."""
    with SolutionServer(SUITE, "gold") as server:
        messages = conversation(SUITE[0].problem_statement, 0)
        message = ask(server, messages).json()["choices"][0]["message"]
    assert "```mswea_bash_command\ngit status --short && ls\n```" in message["content"]
    assert "tool_calls" not in message


def test_the_job_id_names_the_instance_too() -> None:
    """Where the problem is not in the conversation word for word."""
    with SolutionServer(SUITE, "gold") as server:
        answer = ask(server, conversation("", 1), job_id=f"{SUITE[3].instance_id}-run", tools=[{}])
    call = answer.json()["choices"][0]["message"]["tool_calls"][0]
    assert json.loads(call["function"]["arguments"])["command"] == commands(SUITE[3], "gold")[1]


def test_an_unknown_conversation_is_refused() -> None:
    """Better an error than the solution of something else."""
    with SolutionServer(SUITE, "gold") as server:
        assert ask(server, conversation("hello", 0)).status_code == 400


def test_it_serves_what_a_run_asks_a_server_for() -> None:
    """A model's name, health, and the routes of the plugin."""
    with SolutionServer(SUITE, "gold") as server:
        models = httpx.get(f"{server.base_url}/models").json()
        info = httpx.get(f"{server.base_url}/agentkv/info").json()
        release = httpx.post(f"{server.base_url}/agentkv/jobs/j-1/release", json={})
    assert [model["id"] for model in models["data"]] == ["scripted-gold"]
    assert info["policy"] == "scripted"
    assert release.json() == {"job_id": "j-1"}
