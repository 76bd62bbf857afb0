"""`agentkv simulate` as users run it: output, files, exit status, bad input, determinism."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentkv.cli import main as agentkv
from agentkv.evals.rows import read_runs
from agentkv.evals.simulator.plan import DEFAULT_JOBS
from agentkv.evals.simulator.simulate import main

from .test_machine import PROFILE

GPU = ["--gpu", "rtx-5090"]
SMALL = [*GPU, "--blocks", "1000", "--jobs", "6", "--jps", "1"]
STOCK = ["--policy", "fcfs"]


def policies(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What the document says of each policy."""
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["policies"]
    return found


def test_jobs_of_several_clients_are_reported_by_client(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The document, the table and the rows have each client's jobs."""
    flags = [*SMALL, "--policy", "agentkv", "--clients", "alice=2,bob=1", "--out", str(tmp_path)]
    assert main(flags) == 0
    table, *_ = capsys.readouterr().out.splitlines()
    assert table.split("  ")[-2:] == ["alice mean s", "bob mean s"]
    assert main([*flags, "--force", "--json"]) == 0
    clients = policies(capsys)["agentkv"]["clients"]
    assert list(clients) == ["alice", "bob"]
    assert sum(client["completed"] for client in clients.values()) == 6
    [run] = read_runs([tmp_path])
    assert sum(job.client == "bob" for job in run.jobs) == clients["bob"]["jobs"]


@pytest.mark.parametrize(
    ("policy", "flags", "other_flags"),
    [
        ("fcfs+offload", ["--blocks", "500", "--dram-gb-s", "25"], ["--dram-gb-s", "0.5"]),
        ("fcfs", ["--blocks", "infinite"], ["--blocks", "500"]),
    ],
)
def test_a_faster_tier_or_an_infinite_pool_makes_jobs_faster(
    policy: str, flags: list[str], other_flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """--dram-gb-s is the rate of loads from the tier; --blocks infinite evicts nothing."""
    jobs = [*GPU, *flags, "--jobs", "20", "--concurrency", "10", "--json", "--policy", policy]
    entries = []
    for more in ([], other_flags):
        assert main([*jobs, *more]) == 0
        entries.append(policies(capsys)[policy])
    assert entries[1]["mean_s"] > 1.5 * entries[0]["mean_s"]
    assert "infinite" not in flags or entries[0]["recomputed_tokens"] == 0


def test_each_policy_has_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A policy's folder has its run and, its event log; --force overwrites them."""
    flags = [*SMALL, *STOCK, "--policy", "continuum:released", "--out", str(tmp_path)]
    flags += ["--json"]
    assert main(flags) == 0
    runs = {run.policy: run for run in read_runs([tmp_path])}
    found = policies(capsys)
    assert set(runs) == set(found) == {"fcfs", "continuum:released"}
    for name, run in runs.items():
        assert [job.status for job in run.jobs] == ["done"] * 6
        assert max(job.duration_s for job in run.jobs) == found[name]["max_s"]
    record = json.loads((tmp_path / "continuum-released" / "timestamps.json").read_text())
    assert len(record["jobs"]) == 6
    assert agentkv(["simulate", *flags]) == 2
    assert "exists: choose another --out, or --force" in capsys.readouterr().err
    assert main([*flags, "--force"]) == 0


def test_the_table_shows_conversations_and_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """Where there are people or steps, the table and the document have their numbers."""
    flags = [*GPU, "--jobs", "8", "--token-scale", "0.1", "--turns", "2", *STOCK]
    for workload, load, title, key in (
        ("mixed", "--jps", "chat TTFT p99 s", "chat_ttft_p99_s"),
        ("rollouts", "--concurrency", "step s", "step_mean_s"),
    ):
        assert main([*flags, "--workload", workload, load, "4"]) == 0
        assert title in capsys.readouterr().out.splitlines()[0]
        assert main([*flags, "--workload", workload, load, "4", "--json"]) == 0
        assert policies(capsys)["fcfs"][key] > 0.0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--jps", "1", "--trace", "TRACE"], "line 1"),
        (["--gpu", "PROFILE", "--jps", "1", *STOCK, "--policy", "fcfs+offload"], "kv_token_bytes"),
        (["--jps", "1", "--jobs", "2", *STOCK, "--out", "PROFILE"], "profile.json/fcfs"),
    ],
)
def test_bad_input_is_refused(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Invalid input exits with status 2 and a message, before any run."""
    contents = {"PROFILE": json.dumps(PROFILE), "TRACE": '{"job_id": "a", "turn": 0}\n'}
    files = {name: tmp_path / f"{name.lower()}.json" for name in contents}
    for name, path in files.items():
        path.write_text(contents[name])
    given = [str(files.get(flag, flag)) for flag in flags]
    out = [] if "--out" in given else ["--out", str(tmp_path / "out")]
    assert agentkv(["simulate", "--gpu", "h100", *out, *given]) == 2
    reported = capsys.readouterr().err
    assert message in reported
    assert reported.startswith("agentkv simulate: ")
    assert not (tmp_path / "out").exists()


def test_without_a_load_memory_runs_short(capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs at once are more than the pool holds; the default policies are compared in words."""
    flags = ["--gpu", "h100", "--blocks", "2000", "--turns", "4"]
    assert main(flags) == 0
    *table, sentence = capsys.readouterr().out.splitlines()
    assert main([*flags, "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    num_at_once, policies = found["workload"]["concurrency"], found["policies"]
    assert f"no load given: {num_at_once} jobs at once" in captured.err
    assert list(policies) == ["fcfs", "agentkv"]
    assert policies["fcfs"]["recomputed_tokens"] > 0
    ratio = policies["fcfs"]["mean_s"] / policies["agentkv"]["mean_s"]
    assert ratio > 1
    wanted = (
        f"With {num_at_once} jobs at once, 1.2 times what fits: "
        f"agentkv: the mean job is done {ratio:.2f} times as fast as under fcfs."
    )
    assert (sentence, table[0].split()[0]) == (wanted, "policy")


def test_a_folder_of_logs_gets_a_load_that_fills_the_pool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As many jobs as this takes, not the default number; the folder is read once."""
    (tmp_path / "empty.jsonl").touch()
    turn = {"job_id": "j", "output_tokens": 4, "command": "ls", "tool_s": 1.0}
    turns = [turn | {"turn": number, "prompt_tokens": 40 + 8 * number} for number in range(2)]
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(turn)}\n" for turn in turns))
    assert main(["--gpu", "h100", "--blocks", "300", "--trace", str(tmp_path), "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["workload"]["jobs"] == 3 * document["workload"]["concurrency"] > DEFAULT_JOBS
    assert captured.err.count("empty.jsonl: is empty") == 1


def test_failed_jobs_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs beyond the longest context fail, with exit status 1 and advice."""
    assert main([*SMALL, "--max-model-len", "1000", *STOCK, "--json"]) == 1
    captured = capsys.readouterr()
    assert "6 of 6 jobs failed" in captured.err
    assert "--max-context-tokens" in captured.err
    assert json.loads(captured.out)["policies"]["fcfs"]["failed"] == 6


@pytest.mark.slow
def test_one_seed_gives_the_same_bytes(tmp_path: Path, capsysbinary: Any) -> None:
    """Rows, summaries and document repeat byte for byte, with any hash seed."""
    names = ("fcfs", "agentkv+offload")
    flags = [*GPU, "--blocks", "600", "--jobs", "8", "--jps", "3", "--workload", "swebench"]
    flags += ["--max-context-tokens", "4000", "--json"]
    flags += [flag for name in names for flag in ("--policy", name)]
    folders = here, there = tmp_path / "here", tmp_path / "there"
    assert main([*flags, "--out", str(here)]) == 0
    command = [sys.executable, "-m", "agentkv.cli", "simulate", *flags, "--out", str(there)]
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run(command, env=env, capture_output=True, check=True)
    assert done.stdout == capsysbinary.readouterr().out
    files = [
        {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
        for out in folders
    ]
    assert len(files[0]) == 2 + 3  # stock has no event log
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--blocks", "2000", "--policy", "agentkv"], "No other policy does the mean job faster"),
        (["--jps", "1", "--jobs", "5"], "memory was never short: at most 1% of the pool"),
        (["--jps", "1", "--jobs", "5"], "Raise --jps, or lower --blocks."),
        (["--concurrency", "1", "--jobs", "5"], "Raise --concurrency, or lower --blocks."),
    ],
)
def test_the_last_line_says_what_the_load_was_worth(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the first policy is the best, or memory never short, the sentence says so."""
    assert main(["--gpu", "h100", "--turns", "2", *flags]) == 0
    assert said in capsys.readouterr().out.splitlines()[-1]


def test_a_sweep_is_played_and_drawn(tmp_path: Path) -> None:
    """One command plays two rates and leaves the rows of each and three figures."""
    flags = [*GPU, "--blocks", "1000", "--jobs", "4", "--turns", "2", "--sweep", "1,2"]
    assert main([*flags, "--out", str(tmp_path)]) == 0
    assert len(read_runs([tmp_path / "1", tmp_path / "2"])) == 4
    assert sorted(path.stem for path in tmp_path.glob("*.png")) == ["policies", "saved", "sweep"]
