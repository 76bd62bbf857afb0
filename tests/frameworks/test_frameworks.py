"""Agents of real frameworks, seen on the wire: nothing in their programs knows of agentkv."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from agentkv.testing import ScriptedServer
from tests.frameworks import scripted_agent
from tests.frameworks.program_runs import CaseReader, Program, SeenJob, versions
from tests.frameworks.scripted_agent import COMMAND


@dataclass(frozen=True)
class Framework:
    """A framework by its distribution, its program, and the cases that the program has."""

    distribution: str
    program: str
    cases: tuple[str, ...]
    extra_turns: int = 0
    """What a run asks the model after its last tool call, apart from the answer."""

    def __str__(self) -> str:
        return self.distribution


FRAMEWORKS = [
    Framework(distribution, program, tuple(cases.split()), *extra_turns)
    for distribution, program, cases, *extra_turns in (
        (
            "openai-agents",
            "openai_agents",
            "sync async stream chat parallel children handoff handoff_streamed many fails "
            "cancelled",
        ),
        (
            "langgraph",
            "langgraph_agent",
            "sync async stream stream_async parallel children many many_threads fails cancelled",
        ),
        (
            "pydantic-ai-slim",
            "pydantic_ai_agent",
            "sync async stream stream_events iterated parallel children many fails cancelled",
        ),
        ("smolagents", "smolagents_agents", "sync stream parallel code children many fails"),
        (
            "google-adk",
            "adk_agents",
            "sync async stream parallel children handoff many fails cancelled",
        ),
        (
            "strands-agents",
            "strands_agents",
            "sync async stream parallel children many fails cancelled",
        ),
        (
            "agno",
            "agno_agents",
            "sync async stream stream_async parallel children handoff many fails cancelled",
        ),
        (
            "llama-index-core",
            "llama_index_agents",
            "sync stream parallel children handoff many fails cancelled",
        ),
        ("dspy", "dspy_react", "sync async children many fails cancelled", 1),
        (
            "haystack-ai",
            "haystack_agents",
            "sync async stream parallel children many fails cancelled",
        ),
    )
]

SHELL = ("shell", COMMAND, 0.2)
LOOKUP = ("lookup", None, 0.1)
EXPECTED: Mapping[str, list[tuple[int, list[tuple[str, str | None, float]]]]] = {
    "parallel": [(2, [LOOKUP, SHELL])],  # by name: some frameworks make them one after another
    "code": [(2, [("python_interpreter", None, 0.2)])],
    "many": [(3, [SHELL, LOOKUP])] * 3,
    "fails": [(2, [SHELL])],
}
"""For each job of a case, by the first word of its name: number of turns, and tools as they end,
with the least time of each."""


class Running:
    """The programs of the frameworks, each started when it is first needed."""

    def __init__(self) -> None:
        self._by_name: dict[str, tuple[Program, ScriptedServer, CaseReader]] = {}

    def get(self, framework: Framework) -> tuple[Program, CaseReader]:
        if framework.distribution not in self._by_name:
            self.stop()  # one at a time: they take memory
            server = ScriptedServer(scripted_agent.reply, model="scripted").start()
            program = Program(framework.program, python_of(framework), server.base_url)
            self._by_name[framework.distribution] = program, server, CaseReader(server)
        program, _, reader = self._by_name[framework.distribution]
        return program, reader

    def stop(self) -> None:
        for program, server, _ in self._by_name.values():
            program.stop()
            server.stop()
        self._by_name.clear()


def python_of(framework: Framework) -> str:
    """The Python that has a framework; skips the test if none has."""
    if framework.distribution not in versions():
        pytest.skip(f"{framework} is not installed here; `make test-frameworks` installs it")
    return versions()[framework.distribution][1]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    running = Running()
    yield running
    running.stop()


def rounded(job: SeenJob, expected: list[tuple[str, str | None, float]]) -> object:
    """The tools of a job with the least time of each, where it took that and not much more."""
    return [
        (name, command, least if least <= seconds < least + 2 else seconds)
        for (name, command, seconds), (_, _, least) in zip(job.tools, expected, strict=False)
    ]


CASES = [
    pytest.param(framework, case, id=f"{framework}-{case}")
    for framework in FRAMEWORKS
    for case in framework.cases
]


@pytest.mark.parametrize(("framework", "case"), CASES)
def test_a_run_is_a_job_with_its_tools(framework: Framework, case: str, running: Running) -> None:
    """Each run of an agent is a job with its turns, its tools one by one, its children, its end."""
    program, reader = running.get(framework)
    answer, kind = program.answer_to(case), case.split("_")[0]
    if kind != "fails" and answer.startswith("failed"):
        pytest.fail(f"{answer}:\n{program.log()[-4000:]}")
    jobs = reader.jobs()
    if kind in ("children", "handoff"):
        lead, helper = jobs
        assert (lead.parent, helper.parent) == (None, lead.job_id)
        assert helper.turns == [*range(1, 3 + framework.extra_turns)]
        assert rounded(helper, [SHELL]) == [SHELL]
        return
    if kind == "cancelled":
        assert answer == "cancelled"
        assert [job.turns for job in jobs] == [[1]]
        return
    assert ("FINISHED" in answer) == (kind != "fails")
    expected = EXPECTED.get(kind, [(3, [SHELL, LOOKUP])])
    if kind == "parallel":
        jobs[0].tools.sort(key=lambda tool: str(tool[0]))
    assert [job.parent for job in jobs] == [None] * len(expected)
    extra_turns = 0 if kind == "fails" else framework.extra_turns
    assert [job.turns for job in jobs] == [
        [*range(1, turns + extra_turns + 1)] for turns, _ in expected
    ]
    assert [rounded(job, tools) for job, (_, tools) in zip(jobs, expected, strict=True)] == [
        tools for _, tools in expected
    ]
    assert all(job.is_streamed for job in jobs) or kind != "stream"


HOSTS = [pytest.param(framework, id=str(framework)) for framework in FRAMEWORKS]


@pytest.mark.parametrize("framework", HOSTS)
def test_one_line_does_the_same(framework: Framework) -> None:
    """`agentkv.instrument()` at start-up does what `agentkv run` does."""
    python = python_of(framework)
    with ScriptedServer(scripted_agent.reply, model="scripted") as server:
        program = Program(framework.program, python, server.base_url, "agentkv.instrument()")
        program.answer_to("sync")
        (job,) = CaseReader(server).jobs()
        program.stop()
    assert job.turns == [*range(1, 4 + framework.extra_turns)]
    assert rounded(job, [SHELL, LOOKUP]) == [SHELL, LOOKUP]


@pytest.mark.parametrize("is_strict", [False, True], ids=["stock", "strict"])
@pytest.mark.parametrize("framework", HOSTS)
def test_without_the_plugin_there_is_one_warning(framework: Framework, is_strict: bool) -> None:
    """On a server without the plugin, strict or not, the agent does its work; one line warns."""
    python = python_of(framework)
    with ScriptedServer(
        scripted_agent.reply, model="scripted", has_plugin=False, is_strict=is_strict
    ) as server:
        program = Program(framework.program, python, server.base_url)
        answer = program.answer_to("sync")
        log = program.stop()
    assert "FINISHED" in answer
    assert log.count("agentkv:") == 1


@pytest.mark.parametrize("framework", HOSTS)
def test_a_dead_server_ends_a_run_as_without_agentkv(framework: Framework) -> None:
    """Where nothing listens the agent fails by the same error as alone; one warning at most."""
    python = python_of(framework)
    with ScriptedServer() as server:
        pass
    answers, log = [], ""
    for how in ("alone", "agentkv run"):
        program = Program(framework.program, python, server.base_url, how)
        answers.append(program.answer_to("fails"))
        log = program.stop()
    assert answers[0] == answers[1]
    assert log.count("agentkv:") <= 1  # it may end before the server is asked
