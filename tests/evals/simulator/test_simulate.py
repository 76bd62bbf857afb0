"""`agentkv simulate` as users run it: output, files, exit status, bad input, determinism."""

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
from agentkv.evals.rows import read_runs
from agentkv.evals.simulator.simulate import main

from .test_machine import PROFILE

SMALL = ["--gpu", "rtx-5090", "--blocks", "1000", "--jobs", "6", "--jps", "1"]
DOCUMENTED_KEYS = {
    *("jobs", "completed", "mean_s", "p50_s", "p90_s", "p99_s", "max_s"),
    *("slowdown_p99", "slowdown_max", "ttft_first_p99_s", "ttft_first_max_s"),
    *("ttft_continuing_p99_s", "ttft_continuing_max_s"),
    *("hit_rate", "preemptions", "recomputed_tokens"),
}


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_the_document_has_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """Each policy has the documented keys as numbers, in the order given."""
    assert main([*SMALL, "--policy", "continuum:paper", "--policy", "fcfs@infinite", "--json"]) == 0
    found = document(capsys)["policies"]
    assert list(found) == ["continuum:paper", "fcfs@infinite"]
    for entry in found.values():
        assert set(entry) >= DOCUMENTED_KEYS
        assert all(isinstance(entry[key], int | float) for key in DOCUMENTED_KEYS)
        assert entry["jobs"] == entry["completed"] == 6


def test_json_is_all_there_is_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json the document is the only line, without it a table precedes it."""
    main([*SMALL, "--policy", "fcfs", "--json"])
    assert len(capsys.readouterr().out.splitlines()) == 1
    main([*SMALL, "--policy", "fcfs"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("policy")
    assert json.loads(lines[-1])["policies"]


def test_the_command_is_one_of_agentkvs(capsys: pytest.CaptureFixture[str]) -> None:
    """`agentkv simulate` runs the command."""
    assert agentkv(["simulate", *SMALL, "--policy", "fcfs", "--json"]) == 0
    assert document(capsys)["policies"]["fcfs"]["completed"] == 6


def test_a_slowdown_of_one_is_a_job_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs that run one after the other have a slowdown of 1."""
    assert main([*SMALL[:-2], "--concurrency", "1", "--policy", "fcfs", "--json"]) == 0
    assert document(capsys)["policies"]["fcfs"]["slowdown_max"] == pytest.approx(1.0)


def test_blocks_may_be_infinite(capsys: pytest.CaptureFixture[str]) -> None:
    """--blocks infinite gives every policy an unlimited pool."""
    flags = ["--gpu", "rtx-5090", "--blocks", "infinite", "--jobs", "20", "--jps", "8"]
    assert main([*flags, "--policy", "fcfs", "--json"]) == 0
    assert document(capsys)["policies"]["fcfs"]["recomputed_tokens"] == 0


def test_a_slow_tier_makes_jobs_wait(capsys: pytest.CaptureFixture[str]) -> None:
    """A slower link to the tier makes the same jobs take longer."""
    flags = ["--gpu", "rtx-5090", "--blocks", "500", "--jobs", "20", "--concurrency", "10"]
    means_s = []
    for rate in ("25", "0.5"):
        assert main([*flags, "--policy", "fcfs+offload", "--dram-gb-s", rate, "--json"]) == 0
        means_s.append(document(capsys)["policies"]["fcfs+offload"]["mean_s"])
    assert means_s[1] > 1.5 * means_s[0]


def test_each_policy_has_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each policy's folder has a run that `read_runs` reads, and with --record its event log."""
    flags = [*SMALL, "--policy", "fcfs", "--policy", "continuum:released"]
    assert main([*flags, "--out", str(tmp_path), "--record"]) == 0
    runs = {run.policy: run for run in read_runs([tmp_path])}
    assert set(runs) == {"fcfs", "continuum:released"}
    found = document(capsys)["policies"]
    for name, run in runs.items():
        assert [job.status for job in run.jobs] == ["done"] * 6
        assert max(job.duration_s for job in run.jobs) == found[name]["max_s"]
    record = json.loads((tmp_path / "continuum-released" / "timestamps.json").read_text())
    assert len(record["jobs"]) == 6


def test_a_run_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An existing run is overwritten with --force only."""
    flags = [*SMALL, "--policy", "fcfs", "--out", str(tmp_path)]
    assert main(flags) == 0
    assert main(flags) == 2
    assert "exists: choose another --out, or --force" in capsys.readouterr().err
    assert main([*flags, "--force"]) == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--gpu", "h100"], "give --jps R"),
        (["--gpu", "abacus", "--jps", "1"], "--gpu: got 'abacus', allowed are rtx-6000"),
        (["--gpu", "h100", "--model", "gpt", "--jps", "1"], "--model: got 'gpt'"),
        (["--gpu", "h100", "--jps", "1", "--policy", "lifo"], "allowed are fcfs, continuum"),
        (["--gpu", "h100", "--jps", "-1"], "jps: got -1.0"),
        (["--gpu", "h100", "--jps", "1", "--jobs", "0"], "num_jobs: got 0"),
        (["--gpu", "h100", "--jps", "1", "--blocks", "few"], "--blocks: got 'few'"),
        (["--gpu", "h100", "--jps", "1", "--workload", "chess"], "workload: got 'chess'"),
        (["--gpu", "h100", "--jps", "1", "--trace", "/nowhere.jsonl"], "/nowhere.jsonl"),
        (["--gpu", "rtx-6000", "--model", "llama-3.1-70b", "--jps", "1"], "--num-gpus"),
    ],
)
def test_bad_input_is_told(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Invalid input exits with status 2 and a message without a traceback."""
    assert main(flags) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.startswith("agentkv simulate: ")


@pytest.mark.parametrize(
    "flags",
    [
        ["--gpu"],
        ["--gpu", "h100", "--num-gpus", "0"],
        ["--gpu", "h100", "--dram-gib", "-1"],
        ["--gpu", "h100", "--dram-gb-s", "0"],
        [],
    ],
)
def test_bad_flags_exit_with_status_2(flags: list[str]) -> None:
    """Invalid flags exit with status 2."""
    with pytest.raises(SystemExit) as caught:
        main([*flags, "--jps", "1"] if flags != ["--gpu"] else flags)
    assert caught.value.code == 2


def test_a_tier_that_cannot_be_is_told_before_any_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tier that cannot be simulated is refused before the first run."""
    profile = tmp_path / "cpu.json"
    profile.write_text(json.dumps(PROFILE))
    flags = ["--gpu", str(profile), "--jobs", "2", "--jps", "1", "--out", str(tmp_path / "out")]
    assert main([*flags, "--policy", "fcfs", "--policy", "fcfs+offload"]) == 2
    assert "kv_token_bytes" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_trace_with_a_missing_field_names_line_and_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error in a --trace names its line and field."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"job_id": "a", "turn": 0, "n_turns": 1, "output_tokens": 3}\n')
    assert main(["--gpu", "h100", "--jps", "1", "--trace", str(trace)]) == 2
    told = capsys.readouterr().err
    assert "line 1" in told
    assert "prompt_tokens" in told


def test_failed_jobs_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs beyond the longest context fail, with exit status 1 and advice."""
    assert main([*SMALL, "--max-model-len", "1000", "--policy", "fcfs", "--json"]) == 1
    captured = capsys.readouterr()
    assert "6 of 6 jobs failed" in captured.err
    assert "--max-context-tokens" in captured.err
    assert json.loads(captured.out)["policies"]["fcfs"]["failed"] == 6


def test_a_full_disk_ends_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk ends the run with status 1, and the document has what was simulated."""
    (tmp_path / "fcfs").mkdir()
    (tmp_path / "fcfs" / "turns.jsonl").symlink_to("/dev/full")
    flags = [*SMALL, "--policy", "fcfs", "--out", str(tmp_path), "--force", "--json"]
    assert main(flags) == 1
    found = document(capsys)
    assert "No space left on device" in found["ended_early"]
    entry = found["policies"]["fcfs"]
    assert entry["completed"] + entry["cut"] == entry["jobs"]


def test_a_folder_that_cannot_be_made_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An --out that cannot be made exits with status 2 and names the folder."""
    (tmp_path / "file").write_text("")
    assert main([*SMALL, "--policy", "fcfs", "--out", str(tmp_path / "file")]) == 2
    assert "file/fcfs" in capsys.readouterr().err


@pytest.mark.slow
def test_what_was_simulated_is_kept_on_ctrl_c(tmp_path: Path) -> None:
    """Ctrl-C keeps rows, summary and document, with jobs under way as cut, and status 1."""
    flags = ["--gpu", "rtx-5090", "--jobs", "20000", "--jps", "1", "--policy", "fcfs", "--json"]
    command = [sys.executable, "-m", "agentkv.cli", "simulate", *flags, "--out", str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert any(line.startswith("fcfs: ") for line in process.stderr)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    found = json.loads(output)
    assert found["ended_early"] == "fcfs: interrupted"
    entry = found["policies"]["fcfs"]
    assert entry["completed"] > 0
    assert entry["completed"] + entry["cut"] == entry["jobs"]
    [run] = read_runs([tmp_path])
    assert {job.status for job in run.jobs} <= {"done", "cut"}


@pytest.mark.slow
def test_ctrl_c_between_two_policies_keeps_the_first(tmp_path: Path) -> None:
    """Ctrl-C between two policies keeps the first one's results."""
    flags = [*SMALL, "--policy", "fcfs", "--policy", "continuum", "--json", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "agentkv.cli", "simulate", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "fcfs" / "run.json").exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    found = json.loads(output)
    assert "interrupted" in found["ended_early"]
    assert found["policies"]["fcfs"]["completed"] == 6


@pytest.mark.slow
def test_one_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    """Rows, summaries and document repeat byte for byte, with any hash seed."""
    policies = ("fcfs", "context_serve", "continuum+offload", "agentkv+offload")
    outputs = []
    for hash_seed in ("1", "2"):
        out = tmp_path / hash_seed
        flags = ["--gpu", "rtx-5090", "--blocks", "1500", "--jobs", "25", "--jps", "3"]
        flags += ["--workload", "swebench", "--max-context-tokens", "4000", "--json"]
        flags += [flag for policy in policies for flag in ("--policy", policy)]
        done = subprocess.run(
            [sys.executable, "-m", "agentkv.cli", "simulate", *flags, "--out", str(out)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        )
        files = sorted(path for path in out.rglob("*") if path.is_file())
        contents = {str(path.relative_to(out)): path.read_bytes() for path in files}
        outputs.append((done.stdout, contents))
    assert len(outputs[0][1]) == 2 * len(policies)
    assert outputs[0] == outputs[1]
