"""Faults of a real server: an agent in a session sees what a bare client sees; its job goes on."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB; the test is skipped where none can be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Write a file that takes all that is left of a disk."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1024)):
            pass
    assert not os.statvfs(folder).f_bfree
    return filler


def test_a_full_disk_below_record_and_state_costs_the_agent_nothing(
    small_disk: Path, make_server: Callable[..., ServerProcess]
) -> None:
    """Turns and tools go on, each file is one error in the log, and both are whole afterwards."""
    settings = {"predictor_state": str(small_disk / "state.json"), "predictor_save_s": 0.5}
    record = small_disk / "record"
    flags = ("--additional-config", json.dumps({"agentkv": settings}))
    server = make_server(*flags, "--run-output-dir", str(record), policy="agentkv")
    with server, openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        filler = fill(small_disk)

        def errors() -> list[int]:
            log = server.log_path.read_text(errors="replace")
            return [log.count(error) for error in ("the event log waits", "state is not kept")]

        with agentkv.session(client, job_id="j") as job:

            def turn() -> None:
                assert outcome(job.client) == "ok"
                with job.tool("frobnicate " + "x" * 1000):
                    pass

            while errors() != [1, 1]:
                turn()
            for _ in range(10):
                turn()
            assert errors() == [1, 1]
        assert agentkv.flush(LIMIT_S)
        filler.unlink()
        events_path = record / "scheduler_timestamps.jsonl"
        wait_for(lambda: '"closed"' in events_path.read_text())
        events = [json.loads(line) for line in events_path.read_text().splitlines()]
        assert sum(event["event"] == "arrival" for event in events) == job.summary().turns > 10
        with agentkv.session(client, job_id="k") as job:
            turn()
        wait_for(lambda: (small_disk / "state.json").exists())
        json.loads((small_disk / "state.json").read_text())
