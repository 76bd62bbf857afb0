"""What the engine stores and shows of the commands that clients and models write."""

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentkv.integrations.vllm.api import engine_side
from tests.integrations.vllm.harness import Engine
from tests.stepped_engine import prompt_of

SECRET = "hunter2"
COMMAND = f"API_TOKEN={SECRET} curl -H 'X-Api-Key: {SECRET}' http://host/x"
REPLY = f"Let me ask.\n```bash\n{COMMAND}\n```"


def shown(engine: Engine) -> str:
    """All that the reading routes answer."""
    keys = [str(job.job_id) for job in engine.retention.jobs]
    asked = (("jobs", [None, keys]), ("stats", []))
    answers = [engine_side.call(engine.scheduler, op, args) for op, args in asked]
    return json.dumps([*answers, engine.events])


def by_tag(engine: Engine) -> None:
    """The command comes as a tag of the next turn."""
    history = engine.turn(prompt_of(100), job_id="a")
    engine.turn(history + prompt_of(40), job_id="a", last_tool=COMMAND, last_tool_s=0.5)


def by_tool_event(engine: Engine) -> None:
    """The client reports the command's start and end."""
    engine.turn(prompt_of(100), job_id="a")
    engine.tool("a", "started", COMMAND)
    engine.tool("a", "finished", COMMAND, duration_s=0.5)


def by_reply(engine: Engine) -> None:
    """The command is read from the reply; the request has a job id and nothing else."""
    history = engine.turn(prompt_of(100), reply=REPLY, job_id="a")
    engine.wait(1.0)
    engine.turn(history + prompt_of(40), job_id="a")


def by_inference(engine: Engine) -> None:
    """The command is read from the reply of a request without any tag."""
    history = engine.turn(prompt_of(100), reply=REPLY)
    engine.turn(history + prompt_of(40), reply=REPLY)


@pytest.mark.parametrize("policy", ["continuum", "context_serve", "agentkv"])
@pytest.mark.parametrize("arrives", [by_tag, by_tool_event, by_reply, by_inference])
def test_no_secret_of_a_command_is_shown_or_stored(
    arrives: Callable[[Engine], None], policy: str, tmp_path: Path
) -> None:
    """Routes, the event log and the predictor's state do not hold the command's arguments."""
    state = tmp_path / "state.json"
    engine = Engine(policy=policy, run_output_dir=str(tmp_path / "log"), predictor_state=str(state))
    arrives(engine)
    answers = shown(engine)
    engine.wait(60.0)  # until the state is written
    engine.scheduler.shutdown()
    files = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 1 + (policy != "continuum")
    for text in [answers, *files]:
        assert SECRET not in text


@pytest.mark.parametrize(("shows_commands", "shown"), [(False, "curl"), (True, COMMAND)])
def test_commands_are_shown_by_their_key(shows_commands: bool, shown: str) -> None:
    """A command is shown by its key, or as it was sent if the setting says so."""
    engine = Engine(policy="agentkv", show_commands=shows_commands)
    engine.turn(prompt_of(100), reply=REPLY, job_id="a")
    job: dict[str, Any] = engine_side.call(engine.scheduler, "job", ["a"])
    assert job["command"] == shown
    assert (SECRET in json.dumps(engine.scheduler.watchers.log.as_dict())) is shows_commands


def test_files_with_commands_are_for_their_owner_alone(tmp_path: Path) -> None:
    """The event log and the predictor's state have mode 0600, folders made for them 0700."""
    log, state = tmp_path / "made" / "log", tmp_path / "made" / "state" / "p.json"
    engine = Engine(policy="agentkv", run_output_dir=str(log), predictor_state=str(state))
    by_tag(engine)
    engine.wait(60.0)
    engine.scheduler.shutdown()
    made = [log, log / "scheduler_timestamps.jsonl", state.parent, state]
    modes = [stat.S_IMODE(path.stat().st_mode) for path in made]
    assert [oct(mode) for mode in modes] == ["0o700", "0o600", "0o700", "0o600"]
