"""What our mini-swe-agent models and agent send to a server, turn by turn and at the end."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.test_models import DeterministicModel, make_output

import agentkv
from agentkv.agents.mini_swe import AgentKVAgent, AgentKVModel
from agentkv.errors import TagError
from tests.agents.mini_swe_replies import AGENT_CONFIG, SUBMIT, model_config, tool_call
from tests.scripted_server import ScriptedReply, ScriptedServer

pytestmark = pytest.mark.usefixtures("clean_slate")


@pytest.fixture
def make_server() -> Iterator[Any]:
    """Starts a scripted server; stopped at the end of the test."""
    with ExitStack() as stack:
        yield lambda *replies, **options: stack.enter_context(ScriptedServer(replies, **options))


def run(server: ScriptedServer, *, agent: type = AgentKVAgent, **options: Any) -> Any:
    """Run an agent to its end; the agent is given back, with its result as `result`."""
    model = options.pop("model", None) or AgentKVModel(
        **model_config(server, **options.pop("model_options", {}))
    )
    made = agent(model, LocalEnvironment(), **{**AGENT_CONFIG, **options})
    made.result = made.run("do it")
    agentkv.flush(timeout_s=20)
    return made


def tags(server: ScriptedServer, name: str) -> list[Any]:
    return [turn.tags.get(name) for turn in server.turns]


def paths(server: ScriptedServer) -> list[str]:
    """What arrived, shortened to its last word."""
    return [request.path.rpartition("/")[2] for request in server.requests]


@pytest.mark.parametrize("agent", [AgentKVAgent, DefaultAgent])
@pytest.mark.parametrize("provider", ["hosted_vllm", "openai"])
def test_every_turn_is_tagged(make_server: Any, provider: str, agent: type) -> None:
    """The model alone tags each call, also one whose reply has no command, on both HTTP paths."""
    server = make_server(tool_call("sleep 0.1", "true"), ScriptedReply("hm"), tool_call("true"))
    run(server, agent=agent, step_limit=3, model_options={"model_name": f"{provider}/m"})
    assert tags(server, "turn") == [1, 2, 3]
    assert len(set(tags(server, "job_id"))) == 1
    assert tags(server, "last_tool")[:2] == [None, "sleep 0.1\ntrue"]
    assert 0.1 <= tags(server, "last_tool_s")[1] < 5
    assert tags(server, "is_last_step") == [None, None, True]
    events = [(event["state"], event["turn"]) for _, event in server.tool_events]
    assert events[:2] == [("started", 1), ("finished", 1)]


@pytest.mark.parametrize("agent", [AgentKVAgent, DefaultAgent])
def test_a_second_run_of_a_model_is_another_job(make_server: Any, agent: type) -> None:
    """A second conversation is another job, and a failed submission goes on in the same one."""
    server = make_server(tool_call(f"{SUBMIT}; false"), tool_call(SUBMIT), tool_call(SUBMIT))
    model = AgentKVModel(**model_config(server, agentkv_job_id="a"))
    for _ in range(2):
        run(server, agent=agent, model=model)
    assert tags(server, "job_id") == ["a", "a", "a.2"]
    assert tags(server, "turn") == [1, 2, 1]


def test_the_job_id_is_instance_and_run(make_server: Any) -> None:
    """They are joined by a dot and cut to fit the wire; a job id of the model goes first."""
    server = make_server(tool_call(SUBMIT))
    run(server, instance_id="i", model_options={"agentkv_run_id": "r"})
    run(server, instance_id="i", model_options={"agentkv_run_id": "r", "agentkv_job_id": "exact"})
    run(server, instance_id="i" * 300, model_options={"agentkv_run_id": "r"})
    assert tags(server, "job_id") == ["i.r", "exact", f"{'i' * 254}.r"]


def test_a_failed_attempt_keeps_its_turn(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """mini-swe-agent's retry after a 500 carries the number of the attempt before."""
    monkeypatch.setenv("MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT", "2")
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)
    server = make_server(tool_call(SUBMIT))
    server.fail_next(500)
    agent = run(server)
    assert tags(server, "turn") == [1, 1]
    assert [row["turn"] for row in agent.turn_rows] == [1]


def test_a_submission_is_released_before_it_is_run(make_server: Any) -> None:
    """A reply with the submit command releases the job, as no turn follows."""
    server = make_server(tool_call(f"sleep 0.3; {SUBMIT}"))
    model = AgentKVModel(**model_config(server, agentkv_job_id="a"))
    message = model.query([{"role": "user", "content": "go"}])
    server.wait_for(lambda server: server.released)
    assert message["extra"]["actions"][0]["command"].endswith(SUBMIT)


TALK, TWO_ERRORS = ScriptedReply("hm"), {"max_consecutive_format_errors": 2}
ENDINGS: dict[str, tuple[ScriptedReply, dict[str, Any], str]] = {
    "submitted": (tool_call(SUBMIT), {}, "Submitted"),
    "step limit": (tool_call("true"), {"step_limit": 1}, "LimitsExceeded"),
    "time limit": (tool_call("sleep 1"), {"wall_time_limit_seconds": 1}, "TimeExceeded"),
    "format errors": (TALK, TWO_ERRORS, "RepeatedFormatError"),
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_end_releases(make_server: Any, ending: str) -> None:
    """However the loop ends by itself, the last request is the release of its job."""
    reply, options, exit_status = ENDINGS[ending]
    server = make_server(reply)
    agent = run(server, model_options={"agentkv_job_id": "a"}, **options)
    assert agent.result["exit_status"] == exit_status
    assert tags(server, "is_last_step")[-1] is (True if ending == "step limit" else None)
    assert paths(server)[-1] == "release"
    assert set(server.released) == {"a"}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("container gone")])
def test_an_exception_releases(make_server: Any, error: BaseException) -> None:
    """An exception reaches the caller, releases the job, and keeps the turn before it."""

    class Broken(LocalEnvironment):  # type: ignore[misc]
        def execute(self, *args: Any, **kwargs: Any) -> Any:
            raise error

    server = make_server(tool_call("ls"))
    agent = AgentKVAgent(AgentKVModel(**model_config(server)), Broken(), **AGENT_CONFIG)
    with pytest.raises(type(error)):
        agent.run("do it")
    server.wait_for(lambda server: server.released)
    assert [row["command"] for row in agent.turn_rows] == ["ls"]


def test_the_rows_hold_times_tokens_and_command(make_server: Any) -> None:
    """Each reply has a row, malformed ones included, and the trajectory contains them."""
    talk = ScriptedReply("hm", cached_tokens=None)
    server = make_server(tool_call("sleep 0.2"), talk, tool_call(SUBMIT))
    agent = run(server)
    assert tags(server, "is_last_step") == [None] * 3
    first, second, third = agent.turn_rows
    assert agent.save(None)["info"]["agentkv"]["turns"] == agent.turn_rows
    assert (first["turn"], first["command"]) == (1, "sleep 0.2")
    assert 0.2 <= first["tool_s"] < 5
    assert 0 < first["llm_s"] < 5
    assert [first[f"{kind}_tokens"] for kind in ("prompt", "cached", "output")] == [100, 80, 5]
    assert (second["command"], second["tool_s"], second["cached_tokens"]) == (None, 0.0, None)
    assert third["tool_s"] > 0


def test_the_caller_s_extra_body_is_kept(make_server: Any) -> None:
    """Other fields are sent too, and a request tagged by hand is left alone."""
    server = make_server(tool_call(SUBMIT))
    for extra in ({"top_k": 1}, {"job_id": "mine"}):
        run(server, model_options={"model_kwargs": {"extra_body": extra}})
    assert server.turns[0].body["top_k"] == 1
    assert server.turns[0].tags["turn"] == 1
    assert server.turns[1].tags == {"job_id": "mine"}


@pytest.mark.parametrize("is_in_environment", [False, True])
def test_a_key_and_headers_reach_the_plugin(
    make_server: Any, monkeypatch: pytest.MonkeyPatch, is_in_environment: bool
) -> None:
    """The request for the plugin's info has the headers and the key of the calls."""
    server = make_server(tool_call(SUBMIT), api_key="key")
    options = model_config(server, model_kwargs={"extra_headers": {"x-team": "blue"}})
    if is_in_environment:  # in the variables that litellm reads
        monkeypatch.setenv("HOSTED_VLLM_API_BASE", options["model_kwargs"].pop("api_base"))
        monkeypatch.setenv("HOSTED_VLLM_API_KEY", options["model_kwargs"].pop("api_key"))
    run(server, model=AgentKVModel(**options))
    (info,) = [request for request in server.requests if request.path.endswith("/info")]
    assert (info.headers["authorization"], info.headers["x-team"]) == ("Bearer key", "blue")
    assert tags(server, "turn") == [1]


def test_a_gateway_may_hide_the_server(make_server: Any) -> None:
    """`agentkv_server` names the server with the plugin, which gets tools and releases."""
    server, gateway = make_server(), make_server(tool_call(SUBMIT), has_plugin=False)
    run(gateway, model_options={"agentkv_server": server.root_url, "agentkv_job_id": "a"})
    assert tags(gateway, "job_id") == ["a"]
    assert "release" in paths(server)


def test_an_agent_may_drop_its_history(make_server: Any) -> None:
    """In our agent's run a shorter conversation is still the same job."""

    class Forgetful(AgentKVAgent):  # type: ignore[misc]
        def query(self) -> Any:
            if self.n_calls == 2:
                del self.messages[2:]
            return super().query()

    server = make_server(tool_call("true"), tool_call("true"), tool_call(SUBMIT))
    run(server, agent=Forgetful, instance_id="i")
    assert tags(server, "turn") == [1, 2, 3]
    assert len(set(tags(server, "job_id"))) == 1


@pytest.mark.parametrize("is_collected", [True, False])
def test_the_end_of_a_stock_agent_releases(make_server: Any, is_collected: bool) -> None:
    """A model that is garbage-collected or formats the exit message releases its job."""
    server = make_server(tool_call("true"))
    model = AgentKVModel(**model_config(server, agentkv_job_id="a"))
    model.query([{"role": "user", "content": "go"}])
    if is_collected:
        del model
        gc.collect()
    else:
        model.format_message(role="exit", content="broken")
    server.wait_for(lambda server: server.released == ["a"])


@pytest.mark.slow
def test_the_end_of_the_process_releases(make_server: Any) -> None:
    """The end of the process releases a job of the stock agent."""
    server = make_server(tool_call("true"))
    code = (
        "import sys; from agentkv.agents.mini_swe import AgentKVModel\n"
        "model = AgentKVModel(model_name='hosted_vllm/m', agentkv_job_id='a',\n"
        "    model_kwargs={'api_base': sys.argv[1], 'api_key': 'key'})\n"
        "model.query([{'role': 'user', 'content': 'go'}])\n"
    )
    program = [sys.executable, "-c", code, server.base_url]
    subprocess.run(program, check=True, timeout=120)
    assert server.released == ["a"]


def test_a_session_around_an_agent(make_server: Any) -> None:
    """A session is the job of the stock agent's calls, and the parent job of our agent's run."""
    server = make_server(tool_call(SUBMIT))
    with agentkv.session(job_id="outer"):
        run(server, agent=DefaultAgent, model_options={"model_name": "openai/m"})
        run(server, instance_id="i", model_options={"agentkv_run_id": "r"})
    assert tags(server, "job_id") == ["outer", "i.r"]
    assert tags(server, "parent_job_id") == [None, "outer"]


def test_the_agent_runs_models_that_are_not_ours() -> None:
    """Our agent runs a model of another class, without rows."""
    outputs = [make_output("thinking", [{"command": SUBMIT}])]
    agent = AgentKVAgent(DeterministicModel(outputs=outputs), LocalEnvironment(), **AGENT_CONFIG)
    assert agent.run("do it")["submission"] == "the patch\n"
    assert agent.turn_rows == []


@pytest.mark.parametrize("job_id", ["", "x" * 257])
def test_a_wrong_job_id_is_rejected_at_once(job_id: str) -> None:
    """An invalid job id is refused when the model is made."""
    with pytest.raises(TagError, match="job_id"):
        AgentKVModel(model_name="hosted_vllm/m", agentkv_job_id=job_id)
