"""Agents of real frameworks, seen on the wire: nothing in their programs knows of agentkv."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.frameworks import scripted_agent
from tests.frameworks.program_runs import CaseReader, Program, SeenJob, versions
from tests.frameworks.scripted_agent import COMMAND, SLOW_ECHO, SUBMIT
from tests.scripted_apis import ScriptedServer

# all that `make test` could have of these, tests/client and tests/agents have, too
pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Framework:
    """A framework of the catalog, by its distribution."""

    distribution: str
    program: str
    cases: tuple[str, ...]
    extra_turns: int = 0

    def __str__(self) -> str:
        return self.distribution


CATALOG = tomllib.loads((Path(__file__).parent / "frameworks.toml").read_text())
FRAMEWORKS = [
    Framework(
        distribution, entry["program"], tuple(entry["cases"].split()), entry.get("extra_turns", 0)
    )
    for distribution, entry in CATALOG.items()
]

SHELL = ("shell", COMMAND, 0.2)
LOOKUP = ("lookup", None, 0.1)
TWO_TOOLS = [(3, [SHELL, LOOKUP])]
EXPECTED: Mapping[str, list[tuple[int, list[tuple[str, str | None, float]]]]] = {
    "parallel": [(2, [LOOKUP, SHELL])],  # by name: some frameworks make them one after another
    "code": [(2, [("python_interpreter", None, 0.2), ("python_interpreter", None, 0.0)])],
    "bash": [(2, [("bash", SLOW_ECHO, 0.2), ("bash", SUBMIT, 0.0)])],
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
    """All tools of a job, with the least time of each where it took that and not much more."""
    leasts = [least for _, _, least in expected]
    return [
        (name, command, least if least <= seconds < least + 2 else seconds)
        for (name, command, seconds), least in zip_longest(
            job.tools, leasts[: len(job.tools)], fillvalue=float("inf")
        )
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
    if kind == "crew":  # the crew itself asks the model nothing; its task is the child
        assert jobs[0].parent is not None
        jobs = [replace(jobs[0], parent=None)]
    if kind == "cancelled":
        assert answer == "cancelled"
        assert [job.turns for job in jobs] == [[1]]
        return
    assert ("FINISHED" in answer) == (kind != "fails")
    expected = EXPECTED.get(kind, TWO_TOOLS)
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


SDKS = (
    ("openai", "openai"),
    ("anthropic", "anthropic"),
    ("anthropic", "anthropic_stream"),
    ("litellm", "litellm"),
    ("litellm", "litellm_async"),
    ("litellm", "litellm_stream"),
    ("litellm", "litellm_openai"),
    ("instructor", "instructor"),
)


@pytest.mark.parametrize(("distribution", "case"), SDKS, ids=[case for _, case in SDKS])
def test_a_program_without_runs_is_one_job(distribution: str, case: str) -> None:
    """Under `agentkv run --job` the calls of a loop written by hand are turns of one job."""
    sdk = Framework(distribution, "sdk_calls", ())
    with ScriptedServer(scripted_agent.reply, model="scripted") as server:
        with Program(sdk.program, python_of(sdk), server.base_url, "agentkv run --job") as program:
            answer = program.answer_to(case)
        (job,) = CaseReader(server).jobs()
    assert answer == "FINISHED"
    assert job.turns == [1, 2, 3]
    assert server.released == [job.job_id]


HOSTS = [pytest.param(framework, id=str(framework)) for framework in FRAMEWORKS]


@pytest.mark.parametrize("framework", HOSTS)
def test_one_line_does_the_same(framework: Framework) -> None:
    """`agentkv.instrument()` at start-up does what `agentkv run` does."""
    python = python_of(framework)
    with ScriptedServer(scripted_agent.reply, model="scripted") as server:
        how = "agentkv.instrument()"
        with Program(framework.program, python, server.base_url, how) as program:
            program.answer_to(framework.cases[0])
            (job,) = CaseReader(server).jobs()
    num_turns, tools = EXPECTED.get(framework.cases[0], TWO_TOOLS)[0]
    assert job.turns == [*range(1, num_turns + framework.extra_turns + 1)]
    assert rounded(job, tools) == tools


@pytest.mark.parametrize("is_strict", [False, True], ids=["stock", "strict"])
@pytest.mark.parametrize("framework", HOSTS)
def test_without_the_plugin_there_is_one_warning(framework: Framework, is_strict: bool) -> None:
    """On a server without the plugin, strict or not, the agent does its work; one line warns."""
    python = python_of(framework)
    with (
        ScriptedServer(
            scripted_agent.reply, model="scripted", has_plugin=False, is_strict=is_strict
        ) as server,
        Program(framework.program, python, server.base_url) as program,
    ):
        answer = program.answer_to(framework.cases[0])
        log = program.stop()
    assert "FINISHED" in answer
    # Inspect keeps what is logged for the log of its task
    assert log.count("agentkv:") == (framework.distribution != "inspect-ai")


@pytest.mark.parametrize("framework", HOSTS)
def test_a_dead_server_ends_a_run_as_without_agentkv(framework: Framework) -> None:
    """Where nothing listens the agent fails by the same error as alone; one warning at most."""
    python = python_of(framework)
    with ScriptedServer() as server:
        pass
    answers, log = [], ""
    for how in ("alone", "agentkv run"):
        with Program(framework.program, python, server.base_url, how) as program:
            answers.append(re.sub("0x[0-9a-f]+", "0x", program.answer_to(framework.cases[0])))
            log = program.stop()
    assert answers[0] == answers[1]
    assert log.count("agentkv:") <= 1  # it may end before the server is asked
