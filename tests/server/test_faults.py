"""Faults of a real server: an agent in a session sees what a bare client sees; its job goes on."""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

import openai
import psutil
import pytest

import agentkv
from agentkv.server.process import ServerProcess, free_port
from tests.server.chat import LIMIT_S, agentkv_get, wait_for

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(1800)]

STOPPED_S = 60.0
DEAD = {"InternalServerError", "APIConnectionError"}
"""What a call ends with while the engine dies, and after its API server has."""


def outcome(client: openai.OpenAI, timeout_s: float = LIMIT_S) -> str:
    """`ok`, or the error that a call ends with."""
    messages = [{"role": "user", "content": "hi"}]
    try:
        client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=4, timeout=timeout_s
        )
    except openai.OpenAIError as error:
        return type(error).__name__
    return "ok"


def processes_of(server: ServerProcess) -> list[psutil.Process]:
    assert server.pid is not None
    root = psutil.Process(server.pid)
    return [root, *root.children(recursive=True)]


def test_an_agent_sees_a_real_servers_faults_as_a_bare_client_does(
    make_server: Callable[..., ServerProcess], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Stopped, its engine or its API server killed, its state corrupt: a job goes on."""
    caplog.set_level(logging.WARNING, "agentkv")
    port = free_port()
    state = tmp_path / "state.json"
    state.write_text("{corrupt")
    settings = {"predictor_state": str(state), "predictor_save_s": 1.0}
    args = ("--additional-config", json.dumps({"agentkv": settings}))

    def start() -> ServerProcess:
        server = make_server(*args, port=port, policy="agentkv")
        return server.__enter__()

    server = start()
    options = {"base_url": server.base_url, "api_key": "none", "max_retries": 0}
    with (
        openai.OpenAI(**options) as bare,
        openai.OpenAI(**options) as client,
        agentkv.session(client, job_id="j") as job,
    ):

        def both(timeout_s: float = LIMIT_S) -> list[str]:
            outcomes = [outcome(bare, timeout_s), outcome(job.client, timeout_s)]
            began_s = time.monotonic()
            with job.tool("ls"):
                pass
            assert time.monotonic() - began_s < 1.0
            return outcomes

        assert both() == ["ok", "ok"]
        for process in processes_of(server):
            process.suspend()
        stopped_s = time.monotonic()
        assert both(1.0) == ["APITimeoutError"] * 2
        time.sleep(max(0.0, stopped_s + STOPPED_S - time.monotonic()))
        for process in processes_of(server):
            process.resume()
        assert both() == ["ok", "ok"]
        assert agentkv.flush(LIMIT_S)
        wait_for(lambda: (tmp_path / "state.json.kept").exists())
        assert (tmp_path / "state.json.kept").read_text() == "{corrupt"

        for name in ("EngineCore", "API server"):
            processes = processes_of(server)
            engine = next(each for each in processes if "EngineCore" in each.cmdline()[0])
            (engine if name == "EngineCore" else processes[0]).kill()
            assert set(both()) <= DEAD
            for process in processes:  # an engine may outlive its API server, as under fcfs
                if process.is_running():
                    process.kill()
            server.stop()
            server = start()
            assert both() == ["ok", "ok"]
            assert agentkv_get(server, "jobs/j")["turns"] == 1
    assert agentkv.flush(LIMIT_S)
    warnings = [each for each in caplog.records if each.name.startswith("agentkv.client")]
    assert len(warnings) <= 2, caplog.text
