"""What a server sees of mini-swe-agent's own classes once agentkv follows them."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

import agentkv
from tests.agents.mini_swe_replies import AGENT_CONFIG, SUBMIT, fenced, model_config, tool_call
from tests.scripted_server import ScriptedReply, ScriptedServer

pytestmark = pytest.mark.usefixtures("clean_slate")
TALK = ScriptedReply("hm")
NO_CALL = ScriptedReply("thinking", tool_calls=[])
Loop = tuple[type, Sequence[ScriptedReply], dict[str, Any], str]
LOOPS: dict[str, Loop] = {
    "submitted": (
        LitellmModel,
        [tool_call("echo a", "exit 3"), tool_call(SUBMIT)],
        {},
        "Submitted",
    ),
    "failed submission": (
        LitellmModel,
        [tool_call(f"{SUBMIT}; false"), tool_call(SUBMIT)],
        {},
        "Submitted",
    ),
    "one format error": (LitellmModel, [TALK, tool_call(SUBMIT)], {}, "Submitted"),
    "format errors": (LitellmModel, [NO_CALL], {}, "RepeatedFormatError"),
    "step limit": (LitellmModel, [tool_call("true")], {"step_limit": 2}, "LimitsExceeded"),
    "time limit": (
        LitellmModel,
        [tool_call("sleep 1")],
        {"wall_time_limit_seconds": 1},
        "TimeExceeded",
    ),
    "text": (LitellmTextbasedModel, [fenced("echo a"), TALK, fenced(SUBMIT)], {}, "Submitted"),
}


def played(
    server: ScriptedServer, model_class: type = LitellmModel, *, provider: str = "hosted_vllm",
    environment: Any = None, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """All that there is to see of one run, but for times and the server's address."""
    model = model_class(**model_config(server, model_name=f"{provider}/m"))
    agent = DefaultAgent(model, environment or LocalEnvironment(), **{**AGENT_CONFIG, **options})
    result = agent.run("do it")
    assert agentkv.flush(timeout_s=20)
    seen = {"result": result, "messages": agent.messages, "calls": agent.n_calls}
    return dict(_comparable(seen))


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        left_out = {"timestamp", "traceback", "created", "id"}
        return {name: _comparable(part) for name, part in value.items() if name not in left_out}
    return [_comparable(part) for part in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("name", LOOPS)
def test_a_run_is_a_job_and_the_loop_is_as_ever(name: str) -> None:
    """Every call is a turn, every command a tool, and the end is a release, however it comes."""
    model_class, replies, options, exit_status = LOOPS[name]
    with ScriptedServer(replies) as server:
        stock = played(server, model_class, **options)
        assert all(turn.tags == {} for turn in server.turns)
    agentkv.instrument()
    with ScriptedServer(replies) as server:
        assert played(server, model_class, **options) == stock
        assert stock["result"]["exit_status"] == exit_status
        tags = [turn.tags for turn in server.turns]
        assert [each["turn"] for each in tags] == list(range(1, stock["calls"] + 1))
        (job_id,) = {each["job_id"] for each in tags}
        events = [event for _, event in server.tool_events]
        states = [event["state"] for event in events]
        num_commands = sum(bool(m.get("extra", {}).get("actions")) for m in stock["messages"])
        assert states == ["started", "finished"] * num_commands
        assert set(server.released) == {job_id}


@pytest.mark.parametrize("provider", ["hosted_vllm", "openai"])
def test_the_next_turn_carries_the_tool(provider: str) -> None:
    """Its command and seconds, by both of litellm's ways; a second run is another job."""
    agentkv.instrument()
    with ScriptedServer([tool_call("sleep 0.1", "true"), tool_call(SUBMIT)]) as server:
        for _ in range(2):
            played(server, provider=provider)
        first, second, third = (turn.tags for turn in server.turns)
    assert second["last_tool"] == "sleep 0.1\ntrue"
    assert 0.1 <= second["last_tool_s"] < 5
    assert (third["turn"], third["job_id"] == first["job_id"]) == (1, False)


def test_a_session_around_an_agent_is_its_job() -> None:
    """A session is all that it needs for tagged calls, and a promised limit is their last step."""
    with ScriptedServer([tool_call(SUBMIT)]) as server, agentkv.session(job_id="outer") as job:
        job.limit_turns(1)
        played(server)
    assert [turn.tags["job_id"] for turn in server.turns] == ["outer"]
    assert server.turns[0].tags["is_last_step"]


def test_a_failed_attempt_keeps_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """mini-swe-agent's retry after a 500 carries the number of the attempt before."""
    monkeypatch.setenv("MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT", "2")
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)
    agentkv.instrument()
    with ScriptedServer([tool_call(SUBMIT)]) as server:
        server.fail_next(500)
        played(server)
        assert [turn.tags["turn"] for turn in server.turns] == [1, 1]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("container gone")])
def test_an_exception_releases(error: BaseException) -> None:
    """An exception reaches the caller, and its job is released."""

    class Broken(LocalEnvironment):  # type: ignore[misc]
        def execute(self, *args: Any, **kwargs: Any) -> Any:
            raise error

    agentkv.instrument()
    with ScriptedServer([tool_call("ls")]) as server:
        with pytest.raises(type(error)):
            played(server, environment=Broken())
        server.wait_for(lambda server: server.released)


@pytest.mark.slow
def test_its_batch_is_a_batch_of_jobs(tmp_path: Path) -> None:
    """`agentkv run -- mini-extra swebench` makes each instance a job."""
    rows = [{"instance_id": name, "problem_statement": "do it"} for name in ("one", "two")]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    program = [sys.executable, "-m", "agentkv.cli", "run", "--"]
    program += [str(Path(sys.executable).with_name("mini-extra")), "swebench"]
    with ScriptedServer([tool_call("true"), tool_call(SUBMIT)]) as server:
        config = {"agent": AGENT_CONFIG, "model": model_config(server)}
        (tmp_path / "config.yaml").write_text(json.dumps(config))
        program += ["--subset", str(tmp_path), "--split", "test", "-o", str(tmp_path / "out")]
        program += ["--environment-class", "local", "-w", "2", "-c", str(tmp_path / "config.yaml")]
        subprocess.run(
            program,
            check=True,
            timeout=300,
            capture_output=True,
            env={**os.environ, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"},
        )
    preds = json.loads((tmp_path / "out" / "preds.json").read_text())
    assert {pred["model_patch"] for pred in preds.values()} == {"the patch\n"}
    job_ids = {turn.tags["job_id"] for turn in server.turns}
    assert len(job_ids) == 2
    assert set(server.released) == job_ids
