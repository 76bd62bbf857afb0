"""`python -m studies.policy_grid` as users run it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentkv.evals.simulator.simulate import main as simulate
from studies.policy_grid.__main__ import main as play_grid
from studies.policy_grid.__main__ import read_units

from .made_rows import row as made_row

SMALL = ["--jobs", "4", "--max-turns", "3", "--pools", "300", "--loads", "1x", "closed-2"]
SMALL += ["--tools", "recorded", "--seeds", "0", "--workers", "1"]
POLICIES = ["--policy", "fcfs", "--policy", "continuum:released"]


def study(*flags: str, out: Path) -> int:
    return play_grid([*SMALL, *flags, "--out", str(out)])


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    [line] = capsys.readouterr().out.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_every_unit_has_its_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two loads and two policies make four rows, one document, tables and a figure."""
    assert study(*POLICIES, out=tmp_path) == 0
    rows = read_units(tmp_path)
    assert {(row["load"], row["policy"]) for row in rows} == {
        (load, policy) for load in ("1x", "closed-2") for policy in ("fcfs", "continuum:released")
    }
    for row in rows:
        assert row["completed"] == row["jobs"] == 4
        assert row["mean_s"] > 0
        assert row["slowdown_max"] >= 1.0
        assert row["error"] is None
    found = document(capsys)
    assert found["units"] == 4
    assert found["figures"] == ["ratios-recorded.png"]
    assert json.loads((tmp_path / "study.json").read_text()) == found
    assert "# Study" in (tmp_path / "tables.md").read_text()


def test_a_policy_sees_the_jobs_that_simulate_plays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row equals what `agentkv simulate` says of the same jobs at the same rate."""
    assert study("--policy", "fcfs", out=tmp_path) == 0
    [row] = [row for row in read_units(tmp_path) if row["load"] == "1x"]
    capsys.readouterr()
    flags = ["--gpu", "h100", "--workload", "swebench", "--jobs", "4", "--max-turns", "3"]
    flags += ["--blocks", "300", "--jps", str(row["jps"]), "--policy", "fcfs", "--json"]
    assert simulate(flags) == 0
    entry = document(capsys)["policies"]["fcfs"]
    assert {key: row[key] for key in entry} == entry


def test_ideals_stand_beside_the_policies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of ideals have durations of jobs, none of turns, and are no better than stock."""
    ideals = ["--policy", "ideal:in-order", "--policy", "ideal:any-order"]
    assert study("--policy", "fcfs", *ideals, out=tmp_path) == 0
    found = document(capsys)
    assert found["units"] == 6
    rows = [row for row in read_units(tmp_path) if row["load"] == "closed-2"]
    stock_s, in_order_s, any_order_s = (row["mean_s"] for row in rows)
    assert stock_s > in_order_s >= any_order_s > 0
    assert rows[0]["max_s"] > rows[1]["max_s"] >= rows[2]["max_s"] > rows[2]["p99_s"] > 0
    assert rows[1]["ttft_first_p99_s"] is None
    assert "| ideal:in-order" in (tmp_path / "tables.md").read_text()


def test_a_study_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A study is overwritten with --force only, which deletes its rows."""
    assert study(*POLICIES, out=tmp_path) == 0
    assert study("--policy", "fcfs", out=tmp_path) == 2
    assert "exists: --resume it, --force, or another --out" in capsys.readouterr().err
    assert study("--policy", "fcfs", "--force", out=tmp_path) == 0
    assert len(read_units(tmp_path)) == 2


def test_resuming_plays_only_what_is_missing(tmp_path: Path) -> None:
    """A torn last line and a failed unit are played again with --resume, others keep their rows."""
    assert study("--policy", "fcfs", out=tmp_path) == 0
    path = tmp_path / "rows.jsonl"
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    failed = {**second, "error": "killed"}
    path.write_text("".join(f"{json.dumps(row)}\n" for row in (first, failed)) + '{"unit": "x')
    assert study(*POLICIES, "--resume", out=tmp_path) == 0
    rows = read_units(tmp_path)
    assert rows[0] == first
    assert len(rows) == 4
    assert [row["error"] for row in rows] == [None] * 4


def test_a_policy_can_be_played_again(tmp_path: Path) -> None:
    """With --again the units of a policy are replayed, and rows of others stay."""
    assert study(*POLICIES, out=tmp_path) == 0
    before = {row["unit"]: row for row in read_units(tmp_path)}
    assert study(*POLICIES, "--resume", "--again", "continuum:released", out=tmp_path) == 0
    for row in read_units(tmp_path):
        is_same = row["wall_s"] == before[row["unit"]]["wall_s"]
        assert is_same == (row["policy"] == "fcfs")
        assert row["mean_s"] == before[row["unit"]]["mean_s"]


def test_the_last_whole_row_of_a_unit_counts(tmp_path: Path) -> None:
    """Of a unit's rows the last counts, at the place of its first; foreign lines are skipped."""
    foreign = {name: value for name, value in made_row("agentkv", 9.0).items() if name != "one_x"}
    rows = [made_row("fcfs", 1.0), made_row("agentkv", 2.0), made_row("fcfs", 3.0), foreign]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    assert [each["mean_s"] for each in read_units(tmp_path)] == [3.0, 2.0]


def test_other_jobs_do_not_mix_with_those_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Resuming with another configuration is refused with the setting that differs."""
    assert study("--policy", "fcfs", out=tmp_path) == 0
    assert study("--policy", "fcfs", "--jobs", "5", "--resume", out=tmp_path) == 2
    assert "made with num_jobs = 4, now it is 5" in capsys.readouterr().err


def test_tables_are_made_from_rows_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--tables makes the same tables and figures from rows.jsonl alone."""
    assert study(*POLICIES, out=tmp_path) == 0
    tables = (tmp_path / "tables.md").read_bytes()
    for path in tmp_path.iterdir():
        if path.name != "rows.jsonl":
            path.unlink()
    assert play_grid(["--tables", str(tmp_path)]) == 0
    assert (tmp_path / "tables.md").read_bytes() == tables
    assert (tmp_path / "ratios-recorded.png").exists()
    assert play_grid(["--tables", str(tmp_path / "none")]) == 2


@pytest.mark.parametrize("text", ["", "{}\n", '{"unit": "of another version"}\n'])
def test_tables_need_a_row(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--tables refuses a study without a row of this version."""
    (tmp_path / "rows.jsonl").write_text(text)
    assert play_grid(["--tables", str(tmp_path)]) == 2
    assert "no row of a unit in it" in capsys.readouterr().err
    assert not (tmp_path / "study.json").exists()


def test_two_files_of_tools_have_two_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two --tools files of the same name are refused, since rows have no folder."""
    files = [str(tmp_path / folder / "tools.jsonl") for folder in "ab"]
    assert study("--tools", *files, out=tmp_path / "out") == 2
    assert "two files of one name" in capsys.readouterr().err


def test_a_unit_that_fails_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A unit that fails leaves a row with its error, the others go on, and the exit status is 1."""
    profile = {
        **{"name": "small", "model": "m", "request_s": 0.001, "num_blocks": 300},
        **{"block_tokens": 16, "max_num_seqs": 8, "max_num_batched_tokens": 512},
        "max_model_tokens": 8192,
        "step": {
            **{"fixed_s": 0.001, "prefill_token_s": 1e-5, "prefill_pair_s": 0.0},
            **{"decode_s": 1e-4, "context_token_s": 1e-8},
        },
    }
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile))
    flags = ["--gpu", str(path), "--policy", "fcfs+offload", "--policy", "fcfs"]
    assert study(*flags, out=tmp_path / "out") == 1
    errors = {(row["load"], row["policy"]): row["error"] for row in read_units(tmp_path / "out")}
    assert {place for place, error in errors.items() if error is None} == {
        ("1x", "fcfs"),
        ("closed-2", "fcfs"),
    }
    assert "kv_token_bytes" in errors["1x", "fcfs+offload"]
    assert len(document(capsys)["failed_units"]) == 2


def test_settings_are_ablated_by_name(tmp_path: Path) -> None:
    """A policy with settings is a policy of its own in the rows."""
    flags = ["--policy", "continuum", "--policy", 'continuum{"max_ttl_s": 1}', "--loads", "1x"]
    assert study(*flags, out=tmp_path) == 0
    assert [row["policy"] for row in read_units(tmp_path)] == [
        "continuum",
        'continuum{"max_ttl_s":1}',
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--policy", "lifo"], "allowed are fcfs, continuum"),
        (["--loads", "heavy"], "--loads: got 'heavy'"),
        (["--tools", "hammer"], "hammer"),
        (["--part", "tune"], "only the jobs of a --trace are split"),
        (["--trace", "/nowhere.jsonl"], "/nowhere.jsonl"),
        (["--gpu", "abacus"], "--gpu: got 'abacus'"),
    ],
)
def test_bad_input_is_told(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Invalid input exits with status 2 and one line, and writes nothing."""
    assert study(*flags, out=tmp_path / "out") == 2
    told = capsys.readouterr().err
    assert told.startswith("python -m studies.policy_grid: ")
    assert message in told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "flags", [[], ["--out", "a", "--tables", "b"], ["--out", "a", "--resume", "--force"]]
)
def test_flags_that_do_not_go_together(flags: list[str]) -> None:
    """Flags that exclude each other exit with status 2."""
    with pytest.raises(SystemExit) as caught:
        play_grid([*flags])
    assert caught.value.code == 2


def command(out: Path, *flags: str) -> list[str]:
    start = [sys.executable, "-m", "studies.policy_grid", *SMALL, *flags]
    return [*start, "--out", str(out)]


@pytest.mark.slow
def test_workers_give_the_rows_of_one_process(tmp_path: Path) -> None:
    """Two workers give the rows of one process, except for times and sources."""
    for name, num_workers in (("one", "1"), ("two", "2")):
        flags = [*POLICIES, "--workers", num_workers]
        subprocess.run(command(tmp_path / name, *flags), check=True, capture_output=True)
    # the sources may be edited between the two
    of_the_run = dict.fromkeys(("wall_s", "cpu_s", "commit", "code"))
    one, two = (
        {row["unit"]: row | of_the_run for row in read_units(tmp_path / name)}
        for name in ("one", "two")
    )
    assert one == two


@pytest.mark.slow
def test_a_unit_has_its_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A unit beyond --unit-limit-s has failed."""
    flags = ["--policy", "fcfs", "--workers", "2", "--unit-limit-s", "0.2"]
    assert study(*flags, out=tmp_path) == 1
    errors = [row["error"] for row in read_units(tmp_path)]
    assert errors == ["took longer than --unit-limit-s 0.2"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", ["1", "2"])
def test_ctrl_c_keeps_what_there_is(tmp_path: Path, num_workers: str) -> None:
    """Ctrl-C keeps rows, tables and document, with exit status 1."""
    flags = ["--policy", "fcfs", "--seeds", *map(str, range(200)), "--workers", num_workers]
    with subprocess.Popen(
        command(tmp_path, *flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert any(": 3/400 " in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    found = json.loads(output)
    assert found["ended_early"] == "interrupted"
    assert 3 <= found["units"] < 400
    assert found["units"] == len(read_units(tmp_path))
    assert (tmp_path / "tables.md").exists()
