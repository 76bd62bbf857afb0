"""Facts about runs that are killed, interrupted or lose their server: nothing finished is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentkv.agents.sandbox import find_bubblewrap
from agentkv.evals.swebench.instances import load_instances
from agentkv.evals.swebench.scripted_server import SolutionServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_bubblewrap() is None, reason="no bubblewrap works here"),
]
SUITE = load_instances("demo")
LIMIT_S = 90.0
# Each instance takes a second before its agent starts, so that there is a middle.
SLOWLY = ("--workers", "2", "--config", "run.env_startup_command=sleep 1")


@pytest.fixture(scope="module")
def server() -> Iterator[SolutionServer]:
    with SolutionServer(SUITE, "gold") as running:
        yield running


def command(base_url: str, out: Path, *more: str) -> list[str]:
    program = [sys.executable, "-m", "agentkv.cli", "swebench", "run", "--base-url", base_url]
    return [*program, "--out", str(out), *SLOWLY, *more]


def begun(base_url: str, out: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(base_url, out, *more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell that runs the tests in the background has them, and their children, ignore it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env={**os.environ, "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1"},
    )


def resumed(base_url: str, out: Path) -> dict[str, Any]:
    done = subprocess.run(
        command(base_url, out, "--resume"), capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def rows(out: Path) -> list[dict[str, Any]]:
    path = out / "instances.jsonl"
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def wait_until(condition: Callable[[], object]) -> None:
    """For what another process does, which cannot be awaited."""
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "the other process does not get there"
        time.sleep(0.05)


def check_complete(out: Path) -> None:
    """Every instance ended once, with its solution, and nothing else is left."""
    found = rows(out)
    assert sorted(row["instance_id"] for row in found) == sorted(one.instance_id for one in SUITE)
    assert {row["exit_status"] for row in found} == {"Submitted"}
    predictions = json.loads((out / "preds.json").read_text())
    assert {name: entry["model_patch"] for name, entry in predictions.items()} == {
        one.instance_id: one.patch for one in SUITE
    }
    assert json.loads((out / "run.json").read_text())["ended_at"] is not None
    assert not (out / "worktrees").exists()


def test_a_killed_run_is_gone_on_with(server: SolutionServer, tmp_path: Path) -> None:
    """After kill -9 in the middle, what was finished stays as it was, the rest is played."""
    out = tmp_path / "run"
    process = begun(server.base_url, out)
    wait_until(lambda: len(rows(out)) >= 2)
    process.kill()
    process.communicate()
    kept = rows(out)
    assert 2 <= len(kept) < len(SUITE)
    document = resumed(server.base_url, out)
    assert document["over"] == len(SUITE)
    assert rows(out)[: len(kept)] == kept
    check_complete(out)
    sessions = json.loads((out / "run.json").read_text())["sessions"]
    assert [one["stopped_because"] for one in sessions] == ["killed", None]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_in_order(
    server: SolutionServer, tmp_path: Path, number: signal.Signals
) -> None:
    """Status 1, a document that says so, and --resume completes it."""
    out = tmp_path / "run"
    process = begun(server.base_url, out)
    wait_until(lambda: len(rows(out)) >= 1)
    process.send_signal(number)
    printed, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1, said
    document = json.loads(printed.splitlines()[-1])
    assert document["ended_early"] == "interrupted"
    assert document["over"] == len(rows(out)) < len(SUITE)
    resumed(server.base_url, out)
    check_complete(out)


def test_a_server_that_dies_ends_the_run(tmp_path: Path) -> None:
    """What was finished is kept, the rest is not spoiled, and another server completes it."""
    out = tmp_path / "run"
    with SolutionServer(SUITE, "gold") as server:
        process = begun(server.base_url, out)
        wait_until(lambda: len(rows(out)) >= 2)
    printed, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1, said
    document = json.loads(printed.splitlines()[-1])
    assert f"the server at {server.base_url.removesuffix('/v1')} is gone" in document["ended_early"]
    with SolutionServer(SUITE, "gold") as another:
        resumed(another.base_url, out)
    assert {row["exit_status"] for row in rows(out)} == {"Submitted"}
    check_complete(out)


def test_a_second_interrupt_does_not_wait(tmp_path: Path) -> None:
    """An agent that waits for its server's answer is left as it is."""
    out = tmp_path / "run"
    asked, answer_now = threading.Event(), threading.Event()

    class Hanging(SolutionServer):
        def _play(self, body: Any) -> Any:
            asked.set()
            answer_now.wait(LIMIT_S)
            return super()._play(body)

    with Hanging(SUITE, "gold") as server:
        process = begun(server.base_url, out)
        assert asked.wait(LIMIT_S)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert any("Ctrl-C again" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=LIMIT_S)
        answer_now.set()
    assert json.loads(printed.splitlines()[-1])["ended_early"] == "interrupted"
    assert rows(out) == []
    assert not (out / "worktrees").exists()
