"""`python -m studies.policy_grid` as users run it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentkv.evals.simulator.simulate import main as simulate
from studies.policy_grid.__main__ import main as play_grid
from studies.policy_grid.__main__ import read_units
from tests.evals.simulator.test_machine import PROFILE

from .made_rows import row as made_row

SMALL = ["--jobs", "4", "--max-turns", "3", "--pools", "300", "--loads", "1x", "closed-2"]
SMALL += ["--tools", "recorded", "--seeds", "0", "--workers", "1"]
STOCK = ["--policy", "fcfs"]
POLICIES = [*STOCK, "--policy", "continuum:released"]


def study(*flags: str, out: Path) -> int:
    return play_grid([*SMALL, *flags, "--out", str(out)])


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    [line] = capsys.readouterr().out.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study of POLICIES, complete."""
    out = tmp_path_factory.mktemp("played")
    assert study(*POLICIES, out=out) == 0
    return out


@pytest.fixture
def copied(played: Path, tmp_path: Path) -> Path:
    """A copy of the complete study, which a test may change."""
    return Path(shutil.copytree(played, tmp_path / "copied"))


def test_every_unit_has_its_row(played: Path) -> None:
    """Two loads and two policies make four rows, one document, tables and a figure."""
    rows = read_units(played)
    assert {(row["load"], row["policy"]) for row in rows} == {
        (load, policy) for load in ("1x", "closed-2") for policy in ("fcfs", "continuum:released")
    }
    for row in rows:
        assert row["completed"] == row["jobs"] == 4
        assert row["mean_s"] > 0
        assert row["slowdown_max"] >= 1.0
        assert row["error"] is None
    found = json.loads((played / "study.json").read_text())
    assert (found["units"], found["figures"]) == (4, ["ratios-recorded.png"])
    assert "# Study" in (played / "tables.md").read_text()


def test_a_policy_sees_the_jobs_that_simulate_plays(
    played: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row equals what `agentkv simulate` says of the same jobs at the same rate."""
    row = read_units(played)[0]
    assert (row["load"], row["policy"]) == ("1x", "fcfs")
    flags = ["--gpu", "h100", "--workload", "swebench", "--jobs", "4", "--max-turns", "3"]
    assert simulate([*flags, "--blocks", "300", "--jps", str(row["jps"]), *STOCK, "--json"]) == 0
    entry = document(capsys)["policies"]["fcfs"]
    assert {key: row[key] for key in entry} == entry


def test_a_study_goes_on_with_other_policies(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Resumed for ideals, a study keeps its rows; theirs have no turns and are no worse."""
    before = read_units(copied)
    ideals = ["--policy", "ideal:in-order", "--policy", "ideal:any-order"]
    assert study(*STOCK, *ideals, "--resume", out=copied) == 0
    assert (read_units(copied)[:4], document(capsys)["units"]) == (before, 8)
    rows = {row["policy"]: row for row in read_units(copied) if row["load"] == "closed-2"}
    stock, in_order, any_order = (rows[name] for name in ("fcfs", *ideals[1::2]))
    assert stock["mean_s"] > in_order["mean_s"] >= any_order["mean_s"] > 0
    assert stock["max_s"] > in_order["max_s"] >= any_order["max_s"] > any_order["p99_s"] > 0
    assert in_order["ttft_first_p99_s"] is None
    assert "| ideal:in-order" in (copied / "tables.md").read_text()


def test_resuming_plays_only_what_is_missing(copied: Path) -> None:
    """A torn last line and a failed unit are played again with --resume, others keep their rows."""
    path = copied / "rows.jsonl"
    *rows, last = (json.loads(line) for line in path.read_text().splitlines())
    failed = {**last, "error": "killed"}
    path.write_text("".join(f"{json.dumps(row)}\n" for row in (*rows[1:], failed)) + '{"unit": "x')
    assert study(*POLICIES, "--resume", out=copied) == 0
    found = read_units(copied)
    assert found[:2] == rows[1:]
    assert [row["error"] for row in found] == [None] * 4


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "exists: --resume it, --force, or another --out"),
        (["--jobs", "5", "--resume"], "made with num_jobs = 4, now it is 5"),
    ],
)
def test_a_study_is_neither_overwritten_nor_mixed(
    flags: list[str], message: str, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other jobs are refused; an existing study needs --resume, or --force to be deleted."""
    assert study(*STOCK, *flags, out=copied) == 2
    assert message in capsys.readouterr().err
    assert len(read_units(copied)) == 4
    assert study(*STOCK, "--force", out=copied) == 0
    assert len(read_units(copied)) == 2


def test_the_last_row_of_a_unit_counts(tmp_path: Path) -> None:
    """Of a unit's rows the last counts, at the place of its first."""
    rows = [made_row("fcfs", 1.0), made_row("agentkv", 2.0), made_row("fcfs", 3.0)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    assert [each["mean_s"] for each in read_units(tmp_path)] == [3.0, 2.0]


def test_tables_are_made_from_rows_alone(copied: Path) -> None:
    """--tables makes the same tables and figures from rows.jsonl alone."""
    tables = (copied / "tables.md").read_bytes()
    for path in copied.iterdir():
        if path.name != "rows.jsonl":
            path.unlink()
    assert play_grid(["--tables", str(copied)]) == 0
    assert (copied / "tables.md").read_bytes() == tables
    assert (copied / "ratios-recorded.png").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no row of a unit in it"),
        ('{"unit": "of another version"}\n', "line 1 lacks tools"),
        (None, "no rows.jsonl in it"),
    ],
)
def test_tables_need_a_row(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--tables refuses a study without a row of this version."""
    if text is not None:
        (tmp_path / "rows.jsonl").write_text(text)
    assert play_grid(["--tables", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "study.json").exists()


@pytest.fixture
def profile(tmp_path: Path) -> str:
    """A calibrated server's profile, which has no size of the KV of a token."""
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(PROFILE))
    return str(path)


def test_a_unit_that_fails_is_a_row(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A unit that fails leaves a row with its error, the others go on, and the exit status is 1."""
    out = tmp_path / "out"
    assert study("--gpu", profile, "--policy", "fcfs+offload", *STOCK, out=out) == 1
    errors = {(row["load"], row["policy"]): row["error"] for row in read_units(out)}
    assert errors["1x", "fcfs"] is errors["closed-2", "fcfs"] is None
    assert "kv_token_bytes" in errors["1x", "fcfs+offload"]
    assert len(document(capsys)["failed_units"]) == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--policy", "lifo"], "allowed are fcfs, continuum"),
        (["--loads", "heavy"], "--loads: got 'heavy'"),
        (["--tools", "hammer"], "hammer"),
        (["--tools", "a/tools.jsonl", "b/tools.jsonl"], "two files of one name"),
        (["--part", "tune"], "only the jobs of a --trace are split"),
        (["--trace", "/nowhere.jsonl"], "/nowhere.jsonl"),
        (["--gpu", "abacus"], "--gpu: got 'abacus'"),
        (["--gpu", "PROFILE", "--policy", "ideal:in-order"], "need a GPU of the catalog"),
    ],
)
def test_bad_input_is_refused(
    flags: list[str],
    message: str,
    profile: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Invalid input exits with status 2 and one line, and writes nothing."""
    given = [profile if flag == "PROFILE" else flag for flag in flags]
    assert study(*given, out=tmp_path / "out") == 2
    reported = capsys.readouterr().err
    assert reported.startswith("python -m studies.policy_grid: ")
    assert message in reported
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "flags", [[], ["--out", "a", "--tables", "b"], ["--out", "a", "--resume", "--force"]]
)
def test_flags_that_do_not_go_together(flags: list[str]) -> None:
    """Flags that exclude each other exit with status 2."""
    with pytest.raises(SystemExit) as caught:
        play_grid(flags)
    assert caught.value.code == 2


@pytest.mark.slow
def test_workers_give_the_rows_of_one_process(played: Path, tmp_path: Path) -> None:
    """Two workers give the rows of one process, except for times."""
    assert study(*POLICIES, "--workers", "2", out=tmp_path) == 0
    of_the_run = dict.fromkeys(("wall_s", "cpu_s", "commit"))  # sources may change in between
    one, two = (
        {row["unit"]: row | of_the_run for row in read_units(out)} for out in (played, tmp_path)
    )
    assert one == two


@pytest.mark.slow
def test_a_unit_has_its_time(tmp_path: Path) -> None:
    """A unit beyond --unit-limit-s has failed."""
    assert study(*STOCK, "--workers", "2", "--unit-limit-s", "0.2", out=tmp_path) == 1
    errors = [row["error"] for row in read_units(tmp_path)]
    assert errors == ["took longer than --unit-limit-s 0.2"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", ["1", "2"])
def test_ctrl_c_keeps_what_there_is(tmp_path: Path, num_workers: str) -> None:
    """Ctrl-C keeps rows, tables and document, with exit status 1."""
    flags = [*STOCK, "--seeds", *map(str, range(200)), "--workers", num_workers]
    command = [sys.executable, "-m", "studies.policy_grid", *SMALL, *flags, "--out", str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
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
