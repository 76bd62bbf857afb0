"""Trajectories of real trainers, seen on the wire: their programs know nothing of agentkv.

What plays the engine is said in each program; what trains is left out.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from agentkv.server.demo_model import prepare_demo_model
from tests.frameworks.program_runs import CaseReader, Program, versions
from tests.frameworks.scripted_agent import COMMAND
from tests.scripted_apis import ScriptedReply, ScriptedServer

SHELL = ("shell", COMMAND)


@dataclass(frozen=True)
class Trainer:
    """A trainer, and how a user has it followed."""

    distribution: str
    program: str
    how: str
    cases: Mapping[str, tuple[list[int], list[tuple[str | None, str | None]]]]
    """For each case the numbers of its turns, and its tools as they end."""
    are_tools_timed: bool = True
    calls: tuple[str, str] | None = None
    """The tool that the model calls in every first turn of two, and its command."""

    def __str__(self) -> str:
        return self.distribution


TRAINERS = [
    # its steps are the gaps between turns
    Trainer("openrlhf", "openrlhf_loop", "agentkv run", {"async": ([1, 2], [])}, False),
    Trainer("openpipe-art", "art_rollout", "alone", {"async": ([1, 2], [SHELL])}, calls=SHELL),
]


GIVEN_UP_AT = 100
"""Asked for this number of tokens, the engine gives the turn up, as it does for new weights."""


def replies_of(trainer: Trainer) -> Callable[[Mapping[str, Any]], ScriptedReply]:
    """Replies as text, as tool calls, and as tokens of the demo model."""
    if trainer.calls is None:
        return lambda _: ScriptedReply("ok")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(prepare_demo_model())
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"])  # as in the program
    encode = tokenizer.encode
    name, command = trainer.calls
    arguments = {"command": command}
    text = json.dumps({"name": name, "arguments": arguments})
    call = {"name": name, "arguments": json.dumps(arguments)}
    first = ScriptedReply(
        "",
        tool_calls=[{"id": "call-1", "type": "function", "function": call}],
        token_ids=encode(f"I look.\n<tool_call>\n{text}\n</tool_call>"),
    )
    replies = itertools.cycle([first, ScriptedReply("FINISHED", token_ids=encode("FINISHED"))])
    given_up = ScriptedReply("I", token_ids=encode("I"), is_aborted=True)
    return lambda body: given_up if body.get("max_tokens") == GIVEN_UP_AT else next(replies)


@contextmanager
def running(trainer: Trainer, server: ScriptedServer) -> Iterator[Program]:
    """The program of a trainer, with the tokenizer of the demo model; skips if it is missing."""
    if trainer.distribution not in versions():
        pytest.skip(f"{trainer} is not installed here; `make test-frameworks` installs it")
    python = versions()[trainer.distribution][1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINER_MODEL", str(prepare_demo_model()))
        with Program(trainer.program, python, server.base_url, trainer.how) as program:
            yield program


@pytest.mark.parametrize("trainer", TRAINERS, ids=str)
def test_a_trajectory_is_a_job_with_its_tools(trainer: Trainer) -> None:
    """Turns are tagged and numbered, tools timed and reported, and the end releases the job."""
    with (
        ScriptedServer(replies_of(trainer), model="tiny") as server,
        running(trainer, server) as program,
    ):
        reader = CaseReader(server)
        for case, (turns, tools) in trainer.cases.items():
            assert "FINISHED" in program.answer_to(case), program.log()[-4000:]
            (job,) = reader.jobs()
            assert (job.turns, [tool[:2] for tool in job.tools]) == (turns, tools), case
            last = server.turns[-1].tags
            if trainer.are_tools_timed:
                assert 0.2 <= last["last_tool_s"] < 2, case
