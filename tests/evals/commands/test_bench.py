"""`agentkv bench` against a fake server that speaks real HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agentkv.cli import main as agentkv
from agentkv.evals.rows import TURNS_FILE, read_runs
from tests.evals.fake_vllm import FakeVllm, answering
from tests.http_front import Answer

NOBODY = "http://127.0.0.1:9/v1"
QUICK = ("--token-scale", "0.2", "--turns", "3", "--jobs", "6", "--concurrency", "3")


def bench(
    capsys: pytest.CaptureFixture[str], base_url: str, *options: str
) -> tuple[int, dict[str, Any], str]:
    """Exit status, JSON document (empty if there is none), and the other output."""
    status = agentkv(["bench", "--base-url", base_url, *options])
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    return status, json.loads(lines[-1]) if lines else {}, captured.err + "\n".join(lines[:-1])


def test_a_server_with_the_plugin_is_told_of_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    """Requests to the plugin carry job, turn and last step; a stock server gets none of them."""
    with FakeVllm(policy="continuum") as server:
        _, found, _ = bench(capsys, server.base_url, *QUICK, "--policy", "continuum")
    assert found["policy"] == "continuum"
    turns = [request["turn"] for request in server.requests if "turn" in request]
    assert sorted(turns) == [1] * 6 + [2] * 6 + [3] * 6
    last = [request for request in server.requests if request.get("is_last_step")]
    assert [request["turn"] for request in last] == [3] * 6
    assert {request["last_tool"] for request in last} == {"cat main.py"}
    with FakeVllm() as server:
        bench(capsys, server.base_url, *QUICK)
    assert not any("job_id" in request for request in server.requests)


def test_a_reply_that_is_no_stream_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """A job is not done because something answered with status 200."""
    answers = {"/v1/models": {"data": [{"id": "m"}]}, "/v1/chat/completions": {"choices": []}}
    with answering(lambda path: Answer(200 if path in answers else 404, answers.get(path))) as url:
        status, found, text = bench(capsys, url, *QUICK, "--mode", "live")
    assert (status, found["failed"], found["completed"]) == (1, 6, 0)
    assert "no stream of events" in text


@pytest.mark.parametrize(
    ("fault", "flags", "counts", "seen"),
    [
        ({"fails_at_turn": 2}, (), (5, 1, 0), "out of luck"),
        ({"turn_s": 30.0}, ("--limit-s", "0.3"), (0, 0, 3), "0.3 s were over (--limit-s)"),
        ({"dies_at_turn": 8}, (), None, "ended early: the server stopped answering"),
    ],
)
def test_jobs_that_fail_or_are_cut_are_counted_and_kept(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    fault: dict[str, Any],
    flags: tuple[str, ...],
    counts: tuple[int, int, int] | None,
    seen: str,
) -> None:
    """A failed turn, a time limit and a dead server give status 1, the reason, and all rows."""
    with FakeVllm(**fault) as server:
        options = (*QUICK, "--out", str(tmp_path), *flags)
        status, found, text = bench(capsys, server.base_url, *options)
    assert status == 1
    assert seen in text
    ended = found["completed"], found["failed"], found["cut"]
    assert sum(ended) == found["jobs"] == len(read_runs([tmp_path])[0].jobs)
    assert counts in (None, ended)


def test_a_full_disk_ends_the_run_with_what_was_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A full disk gives status 1, the reason, and the document on standard output."""
    (tmp_path / TURNS_FILE).symlink_to("/dev/full")
    with FakeVllm() as server:
        options = ("--out", str(tmp_path), "--force")
        status, found, text = bench(capsys, server.base_url, *QUICK, *options)
    assert status == 1
    assert "No space left" in found["ended_early"]
    assert found["jobs"] > 0
    assert "Traceback" not in text


def test_ctrl_c_writes_what_there_is(tmp_path: Path) -> None:
    """SIGINT gives status 1 and one document, and the rows of the jobs that it cut are on disk."""
    command = [sys.executable, "-m", "agentkv.cli", "bench", "--out", str(tmp_path), *QUICK]
    with FakeVllm(turn_s=0.2) as server:
        process = subprocess.Popen(
            [*command, "--jobs", "500", "--base-url", server.base_url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "default"},
        )
        rows = tmp_path / TURNS_FILE
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s and not (rows.exists() and rows.stat().st_size):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    found = json.loads(out.splitlines()[-1])
    assert found["ended_early"] == "interrupted (SIGINT)"
    assert found["cut"] > 0
    assert found["jobs"] == found["completed"] + found["failed"] + found["cut"]
    assert len(read_runs([tmp_path])[0].jobs) == found["jobs"]


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        (("--policy", "lifo"), "'lifo', allowed are fcfs"),
        (("--policy", "continuum"), "none of agentkv's policies"),
        (("--trace", "nowhere.jsonl"), "nowhere.jsonl"),
        (("--arrivals", "now"), "--arrivals: got 'now'"),
        (("--model", "gpt"), "does not serve 'gpt'; it serves fake"),
        (("--token-scale", "3"), "the server takes 4096"),
        (("--base-url", NOBODY), "127.0.0.1:9/v1/models: no answer"),
        (("--out", "/proc/nowhere"), "/proc/nowhere"),
    ],
)
def test_bad_usage_is_status_2_and_named(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], seen: str
) -> None:
    """Flags that cannot be used give status 2 and their name, and nothing is sent."""
    with FakeVllm() as server:
        status, found, text = bench(capsys, server.base_url, *options)
    assert (status, found, server.requests) == (2, {}, [])
    assert seen in text


def test_a_replay_needs_a_tokenizer(capsys: pytest.CaptureFixture[str]) -> None:
    """A server without vLLM's /tokenize gives status 2 with the way out."""
    with FakeVllm(has_tokenizer=False) as server:
        status, _, text = bench(capsys, server.base_url, *QUICK)
    assert (status, "--mode live" in text) == (2, True)


def test_hundreds_of_jobs_run_in_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 300 jobs that overlap none is lost, and the largest delay of a start is reported."""
    # not faster: the fake server's socket lets 128 connections wait, and resets what is above
    options = ("--token-scale", "0.1", "--turns", "2", "--jobs", "300", "--jps", "200")
    with FakeVllm(policy="continuum", turn_s=1.0) as server:
        status, found, text = bench(capsys, server.base_url, *options)
    assert status == 0, text
    assert found["completed"] == 300
    assert found["metadata"]["max_arrival_lag_s"] > 0.0
