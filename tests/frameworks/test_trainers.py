"""Trajectories of real trainers, seen on the wire; each program says what plays the engine."""

import itertools
import json

import pytest

from tests.frameworks.program_runs import CaseReader, Program, versions
from tests.frameworks.scripted_agent import COMMAND
from tests.scripted_apis import ScriptedReply, ScriptedServer

pytestmark = pytest.mark.long
SHELL = ("shell", COMMAND)
CALL = {"name": "shell", "arguments": json.dumps({"command": COMMAND})}
FIRST = ScriptedReply("", tool_calls=[{"id": "call-1", "type": "function", "function": CALL}])


@pytest.mark.parametrize(
    ("trainer", "program", "how", "replies", "tools"),
    [
        # its steps are the gaps between turns
        ("openrlhf", "openrlhf_loop", "agentkv run", ["ok"], []),
        ("openpipe-art", "art_rollout", "alone", [FIRST, "FINISHED"], [SHELL]),
    ],
)
def test_a_trajectory_is_a_job_with_its_tools(
    trainer: str,
    program: str,
    how: str,
    replies: list[str | ScriptedReply],
    tools: list[tuple[str, str]],
) -> None:
    """Two turns are tagged and numbered, tools timed and reported, and the end releases the job."""
    if trainer not in versions():
        pytest.skip(f"{trainer} is not installed here; `make test-frameworks` installs it")
    python, turn = versions()[trainer][1], itertools.cycle(replies)

    def reply(_: object) -> ScriptedReply:
        said = next(turn)
        return said if isinstance(said, ScriptedReply) else ScriptedReply(said)

    with ScriptedServer(reply, model="tiny") as server:
        with Program(program, python, server.base_url, how) as running:
            assert "FINISHED" in running.answer_to("async"), running.log()[-4000:]
            (job,) = CaseReader(server).jobs()
        assert (job.turns, [tool[:2] for tool in job.tools]) == ([1, 2], tools)
        assert not tools or 0.2 <= server.turns[-1].tags["last_tool_s"] < 2
