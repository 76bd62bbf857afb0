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
from agentkv.server.process import free_port
from agentkv.testing.http_front import Answer, HttpFront, error_answer
from tests.evals.fake_vllm import FakeVllm

QUICK = ("--token-scale", "0.2", "--turns", "3", "--jobs", "6", "--concurrency", "3")


def bench(
    capsys: pytest.CaptureFixture[str], base_url: str, *options: str
) -> tuple[int, dict[str, Any], str]:
    """Exit status, JSON document (empty if there is none), and the other output."""
    status = agentkv(["bench", "--base-url", base_url, *options])
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    return status, json.loads(lines[-1]) if lines else {}, captured.err + "\n".join(lines[:-1])


def test_all_jobs_are_played_as_planned(capsys: pytest.CaptureFixture[str]) -> None:
    """Prompts have exactly the planned lengths, and all but their last block is found cached."""
    with FakeVllm() as server:
        status, found, text = bench(capsys, server.base_url, *QUICK)
    assert status == 0, text
    assert (found["jobs"], found["completed"], found["failed"], found["cut"]) == (6, 6, 0, 0)
    assert found["per_turn_avg_prompt_tokens"] == [18.0, 94.0, 162.0]
    assert found["per_turn_avg_cached_tokens"] == [0.0, 16.0, 96.0]
    assert found["policy"] == "fcfs"
    assert found["ended_early"] is None


def test_rows_hold_what_the_document_adds_up(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The rows on disk give the printed sums, and each job's parts sum to its duration."""
    with FakeVllm(turn_s=0.05) as server:
        _, found, _ = bench(capsys, server.base_url, *QUICK, "--out", str(tmp_path))
    rows = [json.loads(line) for line in (tmp_path / TURNS_FILE).read_text().splitlines()]
    assert len(rows) == 18
    assert sum(row["output_tokens"] for row in rows) == found["output_tokens"]
    assert sum(row["prompt_tokens"] for row in rows) == found["prompt_tokens"]
    assert {row["job_status"] for row in rows} == {"running", "done"}
    for job in read_runs([tmp_path])[0].jobs:
        parts = job.parts
        assert sum(parts.values()) == pytest.approx(job.duration_s, abs=1e-9)
        assert 0.0 <= parts["other_s"] < 0.5


def test_one_seed_sends_the_same_requests(capsys: pytest.CaptureFixture[str]) -> None:
    """Every policy gets the same prompts; only the salt that keeps runs apart differs."""
    prompts = []
    for policy in (None, "continuum"):
        with FakeVllm(policy=policy) as server:
            bench(capsys, server.base_url, *QUICK)
        prompts.append(sorted(request["prompt"] for request in server.requests))
    assert prompts[0] == prompts[1]


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


def test_a_live_run_chats(capsys: pytest.CaptureFixture[str]) -> None:
    """A live run sends no vLLM fields, and its hit rate is unknown if the server tells none."""
    with FakeVllm(has_tokenizer=False) as server:
        status, found, text = bench(capsys, server.base_url, *QUICK, "--mode", "live")
    assert status == 0, text
    assert found["hit_rate"] is None
    assert all("cache_salt" not in request for request in server.requests)


def test_a_reply_that_is_no_stream_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """A job is not done because something answered with status 200."""
    answers = {"/v1/models": {"data": [{"id": "m"}]}, "/v1/chat/completions": {"choices": []}}
    front = HttpFront(
        lambda _, path, *rest: (
            Answer(200, answers[path]) if path in answers else error_answer(404, path)
        )
    )
    front.start()
    try:
        status, found, text = bench(capsys, f"{front.url}/v1", *QUICK, "--mode", "live")
    finally:
        front.stop()
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
        (("--jobs", "0"), "num_jobs: got 0"),
        (("--jps", "-1"), "jps: got -1.0"),
        (("--workload", "gsm8k"), "allowed is one of reference"),
        (("--trace", "nowhere.jsonl"), "nowhere.jsonl"),
        (("--arrivals", "now"), "--arrivals: got 'now'"),
        (("--model", "gpt"), "does not serve 'gpt'; it serves fake"),
        (("--token-scale", "3"), "the server takes 4096"),
        (("--out", "/proc/nowhere"), "/proc/nowhere"),
    ],
)
def test_bad_usage_is_status_2_and_named(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], seen: str
) -> None:
    """Flags that cannot be used give status 2 and their name, and nothing is sent."""
    with FakeVllm() as server:
        status, found, text = bench(capsys, server.base_url, *options)
    assert status == 2
    assert found == {}
    assert seen in text
    assert server.requests == []


@pytest.mark.parametrize(
    "flags",
    [
        ("--timeout-s", "nan"),
        ("--timeout-s", "0"),
        ("--limit-s", "-5"),
        ("--max-output-tokens", "0"),
    ],
)
def test_a_limit_that_is_none_is_bad_usage(flags: tuple[str, str]) -> None:
    """argparse refuses limits that would cut or fail every job."""
    with pytest.raises(SystemExit) as caught:
        agentkv(["bench", "--base-url", "http://127.0.0.1:9/v1", *flags])
    assert caught.value.code == 2


def test_a_server_that_will_not_do_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """No answer, and no tokenizer for a replay, give status 2 with the way out."""
    port = free_port()
    status, _, text = bench(capsys, f"http://127.0.0.1:{port}", *QUICK)
    assert status == 2
    assert f"127.0.0.1:{port}" in text
    assert "--base-url" in text
    with FakeVllm(has_tokenizer=False) as server:
        status, _, text = bench(capsys, server.base_url, *QUICK)
    assert status == 2
    assert "--mode live" in text


def test_a_run_is_not_overwritten(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A run in --out gives status 2 before anything is sent."""
    with FakeVllm() as server:
        bench(capsys, server.base_url, *QUICK, "--out", str(tmp_path))
        num_requests = len(server.requests)
        status, _, text = bench(capsys, server.base_url, *QUICK, "--out", str(tmp_path))
    assert status == 2
    assert "--force" in text
    assert len(server.requests) == num_requests


def test_hundreds_of_jobs_run_in_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 300 jobs that overlap none is lost, and the largest delay of a start is reported."""
    # not faster: the fake server's socket lets 128 connections wait, and resets what is above
    options = ("--token-scale", "0.1", "--turns", "2", "--jobs", "300", "--jps", "200")
    with FakeVllm(policy="continuum", turn_s=1.0) as server:
        status, found, text = bench(capsys, server.base_url, *options)
    assert status == 0, text
    assert found["completed"] == 300
    assert found["metadata"]["max_arrival_lag_s"] > 0.0
