"""Facts about the demo: the suite from the agent's first turn to the report, and its server."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from agentkv.evals.swebench import command
from agentkv.evals.swebench.suite import Solution, commands, solution_server
from tests.evals.swebench.run_folders import SUITE


@pytest.mark.slow
@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize(("solution", "counts"), [("gold", (6, 0)), ("wrong", (0, 6))])
def test_solutions_decide_what_is_resolved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], solution: str, counts: tuple[int, int]
) -> None:
    """Right solutions make all tests pass; wrong ones fail what they should mend, and no more."""
    flags = ["demo", "--model", f"scripted:{solution}", "--out", str(tmp_path / "run"), "--json"]
    assert command.main(flags) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["resolved"], document["unresolved"]) == counts
    assert document["mode"] == "daemon-less"
    results = json.loads((tmp_path / "run" / "eval.json").read_text())["results"]
    for instance in SUITE:
        tests = instance.fail_to_pass
        failed = f"{len(tests)} of {len(tests)} FAIL_TO_PASS fail, first {tests[0]}"
        assert "b/tests/" not in instance.patch
        detail = results[instance.instance_id]["detail"]
        assert detail == ("" if solution == "gold" else failed)


@pytest.mark.parametrize("solution", ["gold", "wrong"])
def test_the_server_plays_the_commands_in_order(solution: Solution) -> None:
    """The problem tells the instance, and the replies so far tell the turn."""
    turn = [{"role": "assistant", "content": "ls"}, {"role": "user", "content": "output"}]

    with solution_server(SUITE, solution) as server:
        for instance in SUITE:
            messages = [{"role": "user", "content": f"Solve:\n{instance.problem_statement}\nNow."}]
            for expected in commands(instance, solution):
                body = {"model": server.model, "messages": messages, "tools": [{}]}
                answer = httpx.post(f"{server.base_url}/chat/completions", json=body).json()
                call = answer["choices"][0]["message"]["tool_calls"][0]
                assert json.loads(call["function"]["arguments"]) == {"command": expected}
                messages = [*messages, *turn]
        body["messages"] = turn
        assert httpx.post(f"{server.base_url}/chat/completions", json=body).status_code == 400
