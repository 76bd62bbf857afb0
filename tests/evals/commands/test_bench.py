"""`agentkv bench` against a fake server that speaks real HTTP, and its plan without a server."""

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
from agentkv.evals.commands.bench import CPU, read_plan
from agentkv.evals.player.servers import BenchPlan
from agentkv.evals.rows import RUN_FILE, TURNS_FILE, read_runs
from agentkv.evals.workload.workloads import make_workload
from tests.evals.fake_vllm import FakeVllm, answering
from tests.http_front import Answer

QUICK = ("--token-scale", "0.2", "--turns", "3", "--jobs", "6", "--concurrency", "3")


def bench(
    capsys: pytest.CaptureFixture[str], url: str, *options: str
) -> tuple[int, dict[str, Any], str]:
    """Exit status, JSON document (empty if there is none), and standard error."""
    status = agentkv(["bench", "--url", url, *options, "--json"])
    captured = capsys.readouterr()
    return status, json.loads(captured.out) if captured.out else {}, captured.err


def test_a_server_with_the_plugin_is_told_of_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    """Requests to the plugin are of three turns a job, and its tools are known."""
    with FakeVllm(policy="continuum") as server:
        status, found, _ = bench(capsys, server.base_url, *QUICK, "--policy", "continuum")
    (summary,) = found["runs"]
    assert (status, summary["policy"], summary["completed"]) == (0, "continuum", 6)
    assert summary["jobs_per_hour"] > 0
    assert summary["done_within"][-1][1] == 1.0
    assert len(server.requests) == 18


def test_the_table_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json there is a table of the policy, and no document."""
    with FakeVllm() as server:
        flags = (*QUICK, "--repeats", "1", "--deadline", "60")
        assert agentkv(["bench", "--url", server.base_url, *flags]) == 0
    out = capsys.readouterr().out
    assert out.startswith("policy")
    assert [line.split()[:3] for line in out.splitlines()[2:3]] == [["fcfs", "1", "6/6"]]
    assert "in time" in out.splitlines()[0]
    assert "{" not in out


def test_repeats_on_a_running_server_never_share_a_prefix(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each repeat has a folder of its own, and its first turns find nothing."""
    flags = (*QUICK, "--repeats", "2", "--out", str(tmp_path))
    with FakeVllm() as server:
        status, found, _ = bench(capsys, server.base_url, *flags)
        num_requests = len(server.requests)
        again, _, text = bench(capsys, server.base_url, *flags)
        assert (again, "--force" in text, len(server.requests)) == (2, True, num_requests)
        resumed, same, _ = bench(capsys, server.base_url, *flags, "--resume")
        assert (resumed, len(server.requests)) == (0, num_requests)
        (tmp_path / "server-1" / RUN_FILE).unlink()  # it broke off
        again, _, _ = bench(capsys, server.base_url, *flags, "--resume")
        assert (again, len(server.requests)) == (0, num_requests * 3 // 2)
        other = bench(capsys, server.base_url, *flags, "--resume", "--seed", "1")
        assert (other[0], "is of other jobs or servers" in other[2]) == (2, True)
    assert status == 0
    assert same["policies"] == found["policies"]
    assert [turns[0] for turns in _cached(found)] == [0.0, 0.0]
    assert {path.parent.name for path in tmp_path.rglob(TURNS_FILE)} == {"server-0", "server-1"}


def _cached(found: dict[str, Any]) -> list[list[float]]:
    return [each["per_turn_avg_cached_tokens"] for each in found["runs"]]


def test_a_reply_that_is_no_stream_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """A job is not done because something answered with status 200."""
    answers: dict[str, Any] = {"/v1/models": {"data": [{"id": "m"}]}}
    answers |= {"/v1/completions": {"choices": []}, "/tokenize": {"tokens": [1, 2]}}
    with answering(lambda path: Answer(200 if path in answers else 404, answers.get(path))) as url:
        status = agentkv(["bench", "--url", url, *QUICK])
    assert status == 1
    assert "failed (6): RunError: no stream of events" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "counts", "seen"),
    [
        ({"fails_at_turn": 2}, (5, 1, 0), ""),
        ({"dies_at_turn": 8}, None, "ended early: the server stopped answering"),
    ],
)
def test_jobs_that_fail_or_are_cut_are_counted_and_kept(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    fault: dict[str, Any],
    counts: tuple[int, int, int] | None,
    seen: str,
) -> None:
    """A failed turn and a dead server give status 1, the reason, and all rows."""
    with FakeVllm(**fault) as server:
        options = (*QUICK, "--out", str(tmp_path))
        status, found, text = bench(capsys, server.base_url, *options)
    (summary,) = found["runs"]
    ended = summary["completed"], summary["failed"], summary["cut"]
    assert (status, seen in text) == (1, True)
    assert sum(ended) == summary["jobs"] == len(read_runs([tmp_path])[0].jobs)
    assert counts in (None, ended)


def test_a_full_disk_ends_the_run_with_what_was_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A full disk gives status 1, the reason, and the document on standard output."""
    (tmp_path / "server-0").mkdir()
    (tmp_path / "server-0" / TURNS_FILE).symlink_to("/dev/full")
    with FakeVllm() as server:
        options = ("--out", str(tmp_path), "--force")
        status, found, text = bench(capsys, server.base_url, *QUICK, *options)
    assert status == 1
    assert "No space left" in found["ended_early"]
    assert found["runs"][0]["jobs"] > 0
    assert "Traceback" not in text


def test_ctrl_c_writes_what_there_is(tmp_path: Path) -> None:
    """SIGINT gives status 1 and one document, and the rows of the jobs that it cut are on disk."""
    command = [sys.executable, "-m", "agentkv.cli", "bench", "--out", str(tmp_path), *QUICK]
    with FakeVllm(turn_s=0.2) as server:
        process = subprocess.Popen(
            [*command, "--jobs", "500", "--url", server.base_url, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "default"},
        )
        rows = tmp_path / "server-0" / TURNS_FILE
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s and not (rows.exists() and rows.stat().st_size):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    found = json.loads(out)
    assert "interrupted (SIGINT)" in found["ended_early"]
    assert found["runs"][0]["cut"] > 0
    assert len(read_runs([tmp_path])[0].jobs) == found["runs"][0]["jobs"]


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        (("--policy", "continuum"), "none of agentkv's policies"),
        (("--policy", "fcfs", "--policy", "agentkv"), "a running server has one policy"),
        (("--num-gpu-blocks-override", "9"), "leave out --num-gpu-blocks-override"),
        (("--resume",), "--resume: give the --out"),
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
    assert (status, found, server.requests) == (2, {}, [])
    assert seen in text


# servers of its own: the plan


def plan_of(out: Path, *flags: str) -> BenchPlan:
    policies = ("--policy", "fcfs", "--policy", "continuum:released", "--repeats", "2")
    return read_plan([*policies, "--jobs", "1", "--out", str(out), *flags])[1]


def test_repeats_are_interleaved(tmp_path: Path) -> None:
    """Runs alternate between policies, so a machine that slows down slows all alike."""
    runs = plan_of(tmp_path).runs()
    assert [repeat for _, repeat in runs] == [0, 0, 1, 1]
    assert [policy and policy.name for policy, _ in runs] == ["fcfs", "continuum:released"] * 2


def test_the_jobs_of_the_demo_fit_its_server() -> None:
    """Every context is within --max-model-len, and that within the pool's blocks."""
    given = dict(CPU.workload)
    jobs = make_workload(given.pop("workload"), seed=0, num_jobs=given.pop("jobs"), **given).jobs
    flags = dict(zip(CPU.server_flags[::2], CPU.server_flags[1::2], strict=True))
    assert max(job.context_tokens for job in jobs) <= int(flags["--max-model-len"])
    assert int(flags["--max-model-len"]) <= (CPU.num_blocks - 1) * int(flags["--block-size"])


def test_a_server_that_does_not_start_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A server that fails gives status 1, the end of its log, and a document without runs."""
    model = str(tmp_path / "no-model")
    flags = ("--policy", "fcfs", "--out", str(tmp_path), "--model", model, "--json")
    assert agentkv(["bench", *flags]) == 1
    captured = capsys.readouterr()
    assert "its server starts, log in" in captured.err
    assert "no model in" in captured.err
    found = json.loads(captured.out)
    assert found["runs"] == []
    assert "no model in" in found["ended_early"]
