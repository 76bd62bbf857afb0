"""`agentkv replay` on logs that the simulator made, and on none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentkv.cli import main
from agentkv.evals.commands.replay import at_once
from agentkv.evals.event_log import read_record
from agentkv.evals.traces.served import served_turns
from agentkv.evals.traces.turns import job_plans, jobs_among
from agentkv.evals.workload.workloads import make_workload
from tests.evals.event_log.rows import TWO_TURNS, write_record

SERVER = {"policy": "agentkv", "num_blocks": 1200, "block_size": 16}
POOL = [{"event": "server", "at_s": 0.0, "num_blocks": 90, "block_size": 16}]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """The log of a server under `agentkv`, twelve jobs at once, and how long these took there and
    under stock."""
    from tests.evals.simulator.simulated import machine, simulate  # loads vLLM

    folder = tmp_path_factory.mktemp("log")
    planned = make_workload("swebench", seed=1, num_jobs=24, concurrency=12, token_scale=0.5)
    on = machine(SERVER["num_blocks"] + 1)
    found: dict[str, Any] = {"log": folder / "scheduler_timestamps.jsonl"}
    for policy in ("fcfs", "agentkv"):
        _, run = simulate(planned, policy, on, record_events=100_000)
        found[policy] = sum(job.ended_s - job.arrived_s for job in run.jobs) / len(run.jobs)
    assert run.record is not None
    rows = [{"event": "server", "at_s": 0.0, **SERVER}]
    rows += [{"job_id": job, **row} for job, rows in run.record["jobs"].items() for row in rows]
    found["log"].write_text("".join(json.dumps(row) + "\n" for row in rows))
    return found


def test_a_replay_finds_what_stock_really_takes(
    runs: Mapping[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """From the log alone, without the machine's speed, the ratio is that of the real two runs; jobs
    that began as others ended do so again, and the sentence has the numbers of the document."""
    assert runs["fcfs"] > 1.1 * runs["agentkv"]
    assert main(["replay", str(runs["log"]), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    ratio = document["stock"]["mean_s"] / document["policy_run"]["mean_s"]
    assert ratio == pytest.approx(runs["fcfs"] / runs["agentkv"], rel=0.1)
    assert document["policy_run"]["mean_s"] == pytest.approx(runs["agentkv"], rel=0.1)
    assert document["measured"]["mean_s"] == pytest.approx(runs["agentkv"], rel=0.02)
    assert document["jobs_at_once"] == 12
    assert main(["replay", str(runs["log"])]) == 0
    assert f"under stock vLLM: mean job {ratio:.2f} times as long" in capsys.readouterr().out


def test_jobs_that_come_by_themselves_keep_their_times(runs: Mapping[str, Any]) -> None:
    """Without a job that begins as another ends there is no loop of jobs at once."""
    rows = [json.loads(line) for line in runs["log"].read_text().splitlines()[1:]]
    names = list(dict.fromkeys(row["job_id"] for row in rows))
    shifted = {
        name: [
            {**row, "at_s": row["at_s"] + 500.0 * names.index(name)}
            for row in rows
            if row["job_id"] == name
        ]
        for name in names
    }
    record = read_record(str(write_record(runs["log"].with_name("apart.jsonl"), **shifted)))
    assert at_once(job_plans(jobs_among(served_turns(record))), record) is None


def test_a_hybrid_servers_log_is_played_with_its_states(
    runs: Mapping[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its groups of recurrent layers take blocks, too; hits within blocks are not played."""
    path = runs["log"].with_name("hybrid.jsonl")
    rows = runs["log"].read_text().splitlines()[1:]
    for hit_tokens, status in ((16, 0), (4, 2)):
        about = {**SERVER, "hit_tokens": hit_tokens, "num_state_groups": 2}
        path.write_text("\n".join([json.dumps({"event": "server", "at_s": 0.0, **about}), *rows]))
        assert main(["replay", str(path), "--json"]) == status
        said = capsys.readouterr()
        if status == 0:
            assert json.loads(said.out)["machine"]["num_state_groups"] == 2
    assert "no replay of hits within blocks: its server has --prefix-match-unit 4" in said.err


@pytest.mark.parametrize(
    ("rows", "flags", "words"),
    [
        (None, (), "no such file"),
        ([], (), "no event of any job"),
        (TWO_TURNS[:2], (), "no turn in it that finished"),
        (TWO_TURNS, (), "does not say how large the KV cache is"),
        ([*POOL, *TWO_TURNS], (), "2 turns in it finished"),
        ([*POOL, *TWO_TURNS], ("--gpu", "x"), "--gpu: got 'x'"),
        ([*POOL, *TWO_TURNS], ("--gpu", "h100", "--policy", "lru"), "got 'lru'"),
    ],
)
def test_what_cannot_be_played_is_said_in_a_line(
    rows: list[dict[str, Any]] | None,
    flags: tuple[str, ...],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A log that is missing, empty, too short or silent about the pool ends with one line."""
    path = tmp_path / "log.jsonl"
    if rows is not None:
        write_record(path, job=rows)
    assert main(["replay", str(path), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("agentkv replay: ")
    assert words.lower() in line.lower()
