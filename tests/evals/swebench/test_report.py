"""Facts about the report of graded runs: its numbers, its refusals, its files."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentkv.evals.swebench import command
from agentkv.evals.swebench.instances import SwebenchError
from agentkv.evals.swebench.report import report
from tests.evals.swebench.run_folders import PATCHES, write_eval, write_run

STATUSES = ("resolved", "unresolved", "empty", "error")


def write_graded(
    folder: Path, statuses: tuple[str, ...] = STATUSES, *, mode: str = "docker", **options: Any
) -> Path:
    """A run of four instances, graded."""
    write_run(folder, PATCHES, **options)
    write_eval(folder, PATCHES, statuses, mode)
    return folder


def summary_of(folder: Path) -> dict[str, Any]:
    (found,) = report([folder], folder)["runs"]
    return dict(found)


def page_of(*folders: Path) -> str:
    """The Markdown of a report on these runs, with single blanks."""
    document = report(folders, folders[0] / "report")
    return " ".join(Path(document["files"]["markdown"]).read_text().split())


def test_the_numbers_of_a_graded_run(tmp_path: Path) -> None:
    """The pass rate is of all instances, latencies of all turns, cached shares of later turns."""
    summary = summary_of(write_graded(tmp_path))
    assert summary["pass_rate"] == 0.25
    low, high = summary["pass_rate_interval"]
    for bound in (low, high):  # of Wilson's interval: they solve the score equation
        score = (0.25 - bound) ** 2 / (bound * (1 - bound) / 4)
        assert score == pytest.approx(1.959964**2, rel=1e-6)
    assert low < 0.25 < high
    assert {name: summary[name] for name in STATUSES} == dict.fromkeys(STATUSES, 1)
    assert (summary["turn_mean_s"], summary["mean_tools_s"]) == (3.0, 2.0)
    assert (summary["hit_rate"], summary["turns_mean"]) == (0.5, 2.0)


def test_completion_times_are_of_agents_that_ended(tmp_path: Path) -> None:
    """A job that failed after a second would improve the mean, so it is counted apart."""
    failed = {"exit_status": "ConnectionError", "exception_str": "server gone"}
    over = {
        "a-1": {"job_s": 10.0},
        "a-2": {"job_s": 30.0, "exit_status": "LimitsExceeded"},
        "a-3": {"job_s": 1.0, **failed},
    }
    summary = summary_of(write_run(tmp_path, PATCHES, over=over))
    assert (summary["mean_s"], summary["max_s"]) == (20.0, 30.0)
    assert (summary["completed"], summary["failed"], summary["not_run"]) == (2, 1, 1)
    assert "| - | 2 | 1 | 1 |" in page_of(tmp_path)


def test_what_the_server_did_not_report_is_not_zero(tmp_path: Path) -> None:
    """Without cached tokens there is no share, without counters no number of preemptions."""
    silent = write_run(tmp_path, {"a-1": "one"}, over={"a-1": {"cached_tokens": None}})
    summary = summary_of(silent)
    assert (summary["hit_rate"], summary["preemptions"]) == (None, None)


@pytest.mark.parametrize(("statuses", "num_left"), [(STATUSES[:3], 1), ((), 4)])
def test_a_run_graded_in_part_has_no_pass_rate(
    tmp_path: Path, statuses: tuple[str, ...], num_left: int
) -> None:
    """What an evaluation left out counts as not graded."""
    run = summary_of(write_graded(tmp_path, statuses))
    assert (run["pass_rate"], run["not_graded"]) == (None, num_left)


@pytest.mark.parametrize(
    ("patches", "facts", "words"),
    [
        ({**PATCHES, "b-9": "nine"}, {}, "differ in instance_ids"),
        (PATCHES, {"dataset_sha256": "1" * 64}, "differ in dataset_sha256"),
    ],
)
def test_runs_on_other_instances_are_not_compared(
    tmp_path: Path, patches: dict[str, str], facts: dict[str, str], words: str
) -> None:
    """Other ids, or the same ids in another dataset, are refused."""
    first = write_graded(tmp_path / "one")
    second = write_run(tmp_path / "two", patches, policy="fcfs", **facts)
    with pytest.raises(SwebenchError, match=words):
        report([first, second], tmp_path)


def test_policies_stand_side_by_side(tmp_path: Path) -> None:
    """Times are set against the first run's; errors have their reasons, and grading its name."""
    slow = {name: {"job_s": 20.0} for name in PATCHES}
    fcfs = write_graded(tmp_path / "stock", policy="fcfs", over=slow)
    statuses = ("unresolved", "resolved", "empty", "error")
    ours = write_graded(tmp_path / "ours", statuses, mode="daemon-less")
    page = page_of(fcfs, ours)
    for words in (
        "| stock | fcfs | docker | 25.0% (4.6%-69.9%) |",
        *("| ours | continuum | daemon-less |", "| 10.0 (x 0.50) |"),
        *("`a-4`: error: why a-4", "`a-3`: empty: why a-3", "**daemon-less grading**"),
    ):
        assert words in page
    assert "**daemon-less grading**" not in page_of(fcfs)


def test_reports_are_written_where_they_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Into --out, or else the first run's folder; the page is printed."""
    ours, stock = (str(write_graded(tmp_path / name)) for name in ("ours", "stock"))
    assert command.main(["report", ours, stock, "--out", str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out.startswith("# SWE-bench")
    assert (tmp_path / "new" / "report.md").is_file()
    assert command.main(["report", ours, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"]["json"] == f"{ours}/report.json"
