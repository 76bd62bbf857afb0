"""Facts about the report of graded runs: its numbers, its refusals, its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.evals.swebench import report_command
from agentkv.evals.swebench.errors import SwebenchError
from agentkv.evals.swebench.eval_results import EvalFile, Status, Verdict, patch_sha256, read_eval
from agentkv.evals.swebench.report_command import report
from agentkv.evals.swebench.report_comparison import compare
from agentkv.evals.swebench.report_numbers import summarize, wilson
from agentkv.evals.swebench.report_runs import read_run
from tests.evals.swebench.run_folders import row, write_run

IDS = ("a-1", "a-2", "a-3", "a-4")
PATCHES = {"a-1": "one", "a-2": "two", "a-3": "", "a-4": "four"}


def write_graded(
    folder: Path,
    statuses: tuple[Status, ...] = ("resolved", "unresolved", "empty", "error"),
    *,
    mode: str = "docker",
    **options: Any,
) -> Path:
    """A run of four instances, graded."""
    write_run(folder, PATCHES, **options)
    facts = {"harness_version": "5.0.2"}
    results = EvalFile(folder, mode, IDS, facts)
    for instance_id, status in zip(IDS, statuses, strict=True):
        digest = patch_sha256(PATCHES[instance_id])
        results.add(instance_id, Verdict(status, f"why {instance_id}", digest))
    return folder


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),
        (5, 10, 0.2366, 0.7634),
        (10, 10, 0.7225, 1.0),
        (200, 500, 0.358, 0.4436),
    ],
)
def test_the_interval_is_wilsons(successes: int, trials: int, low: float, high: float) -> None:
    """Bounds from the published formula, to four places."""
    found = wilson(successes, trials)
    assert found is not None
    assert found == pytest.approx((low, high), abs=1e-4)


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_rate(counts: tuple[int, int]) -> None:
    """It lies within 0 and 1, holds the rate, and its bounds solve the score equation."""
    successes, trials = counts
    found = wilson(successes, trials)
    assert found is not None
    low, high = found
    rate = successes / trials
    assert 0.0 <= low <= rate + 1e-12
    assert rate - 1e-12 <= high <= 1.0
    for bound in found:
        variance = bound * (1 - bound) / trials
        assert (rate - bound) ** 2 == pytest.approx(1.959964**2 * variance, abs=1e-12)


def test_no_trials_have_no_interval() -> None:
    """A rate of nothing is not known."""
    assert wilson(0, 0) is None


def test_the_pass_rate_is_of_all_instances(tmp_path: Path) -> None:
    """Empty patches and errors count as not resolved."""
    summary = compare([write_graded(tmp_path)]).runs[0].summary
    assert summary["pass_rate"] == 0.25
    counts = {name: summary[name] for name in ("resolved", "unresolved", "empty", "error")}
    assert counts == {"resolved": 1, "unresolved": 1, "empty": 1, "error": 1}


def test_completion_times_are_of_agents_that_ended(tmp_path: Path) -> None:
    """A job that failed after a second would make the mean look good: it is counted apart."""
    rows = [
        row("a-1", start_s=5.0, job_s=10.0),
        row("a-2", start_s=0.0, job_s=30.0, exit_status="LimitsExceeded"),
        row("a-3", job_s=1.0, exit_status="error:ConnectionError", error="server gone"),
    ]
    summary = summarize(read_run(write_run(tmp_path, PATCHES, rows=rows)), None)
    assert summary["jct_mean_s"] == 20.0
    assert summary["jct_max_s"] == 30.0
    assert (summary["completed"], summary["failed"], summary["not_run"]) == (2, 1, 1)


def test_turn_latencies_and_tool_times_are_of_all_turns(tmp_path: Path) -> None:
    """Turns of 2 s and 4 s, each with a tool of 1 s."""
    summary = compare([write_graded(tmp_path)]).runs[0].summary
    assert summary["turn_llm_mean_s"] == 3.0
    assert summary["turn_llm_max_s"] == 4.0
    assert summary["turn_tool_mean_s"] == 1.0
    assert summary["per_turn_llm_mean_s"] == [2.0, 4.0]


def test_the_cached_share_is_of_continuing_turns(tmp_path: Path) -> None:
    """60 of 120 tokens in each second turn; the first turn has nothing of its own to find."""
    summary = compare([write_graded(tmp_path)]).runs[0].summary
    assert summary["cached_share"] == 0.5
    assert summary["cached_share_first"] == 0.0


def test_a_server_that_tells_no_cached_tokens_has_no_share(tmp_path: Path) -> None:
    """Not told is not zero."""
    untold = row("a-1")
    for turn in untold["turns"]:
        turn["cached_tokens"] = None
    summary = summarize(read_run(write_run(tmp_path, {"a-1": "one"}, rows=[untold])), None)
    assert summary["cached_share"] is None


def test_pins_are_what_the_server_told(tmp_path: Path) -> None:
    """Totals of the plugin; None where run.json has none, as under a stock policy."""
    stats = {"pins_total": {"fast": 3, "none": 4}, "pin_ends_total": {"returned": 7, "expired": 0}}
    told = write_run(tmp_path / "told", PATCHES, server_stats=stats)
    untold = write_run(tmp_path / "untold", PATCHES)
    assert summarize(read_run(told), None)["pins"] == 7
    assert summarize(read_run(untold), None)["pins"] is None


def test_the_last_row_of_an_instance_counts(tmp_path: Path) -> None:
    """A resumed run writes a second row, and a kill leaves half a line."""
    folder = write_run(
        tmp_path, {"a-1": "one"}, rows=[row("a-1", job_s=5.0), row("a-1", job_s=7.0)]
    )
    with (folder / "instances.jsonl").open("a") as rows:
        rows.write('{"instance_id": "a-1", "end_')
    assert summarize(read_run(folder), None)["jct_mean_s"] == 7.0


def test_a_patch_graded_in_another_version_counts_as_not_graded(tmp_path: Path) -> None:
    """A resumed run may have other patches than those in eval.json."""
    folder = write_graded(tmp_path)
    write_run(folder, {**PATCHES, "a-1": "one, changed"})
    summary = compare([folder]).runs[0].summary
    assert summary["resolved"] == 0
    assert summary["not_graded"] == 1
    assert summary["pass_rate"] is None


def test_a_harness_that_graded_nothing_makes_no_pass_rate(tmp_path: Path) -> None:
    """No daemon, say: eval.json is there and empty, and the report says what to do."""
    folder = write_run(tmp_path, PATCHES)
    EvalFile(folder, "docker", IDS, {"harness_version": "5.0.2"}).keep({})
    document = report([folder])
    assert document["runs"][0]["pass_rate"] is None
    assert document["runs"][0]["error"] == 0
    assert any("not graded yet" in line for line in document["conditions"])


def test_runs_on_other_instances_are_not_compared(tmp_path: Path) -> None:
    """The refusal names an instance that is in one run only."""
    first = write_graded(tmp_path / "one")
    second = write_run(tmp_path / "two", {**PATCHES, "b-9": "nine"}, policy="fcfs")
    with pytest.raises(SwebenchError, match="1 are in one only, such as b-9"):
        compare([first, second])


def test_runs_on_another_dataset_are_not_compared(tmp_path: Path) -> None:
    """The same ids with other tests are other instances."""
    first = write_graded(tmp_path / "one")
    second = write_graded(tmp_path / "two", policy="fcfs", dataset_sha256="1" * 64)
    with pytest.raises(SwebenchError, match="same dataset"):
        compare([first, second])


def test_policies_stand_side_by_side(tmp_path: Path) -> None:
    """A column each, fcfs first and the baseline of ratios; pairs of instances are counted."""
    slow = [row(name, job_s=20.0) for name in IDS]
    fcfs = write_graded(tmp_path / "fcfs", policy="fcfs", rows=slow)
    continuum = write_graded(tmp_path / "continuum", ("unresolved", "resolved", "empty", "error"))
    document = report([continuum, fcfs], tmp_path / "report")
    page = Path(document["files"]["markdown"]).read_text()
    assert [run["name"] for run in document["runs"]] == ["fcfs", "continuum"]
    assert document["runs"][1]["ratios"]["jct_mean_s"] == 0.5
    assert "| JCT mean | 20.0 s | 10.0 s (x 0.50) |" in page
    assert "1 resolved here and not under fcfs, 1 the other way round" in page


def test_daemon_less_grading_is_labelled(tmp_path: Path) -> None:
    """In the conditions, in the table, and where runs were not graded alike."""
    local = write_graded(tmp_path / "local", mode="daemon-less")
    real = write_graded(tmp_path / "real", policy="fcfs")
    document = report([local, real], tmp_path / "report")
    page = Path(document["files"]["markdown"]).read_text()
    assert "**daemon-less grading**" in page
    assert "**the runs were not graded alike**" in page
    assert "official harness, docker (swebench 5.0.2)" in page
    assert "daemon-less" not in "".join(compare([real]).conditions())


def test_another_version_of_the_harness_grades_otherwise(tmp_path: Path) -> None:
    """It stands above the table, as another mode does."""
    one = write_graded(tmp_path / "one")
    other = write_graded(tmp_path / "other", policy="fcfs")
    assert "not graded alike" not in "".join(compare([one, other]).conditions())
    path = other / "eval.json"
    path.write_text(path.read_text().replace("5.0.2", "5.1.0"))
    assert "not graded alike" in "".join(compare([one, other]).conditions())


def test_every_error_is_named_with_its_reason(tmp_path: Path) -> None:
    """Errors and empty patches stand below the table, one a line."""
    folder = write_graded(tmp_path)
    path = folder / "eval.json"
    path.write_text(path.read_text().replace("why a-4", "why\\n  a-4"))
    page = Path(report([folder])["files"]["markdown"]).read_text()
    assert "`a-4`: error: why a-4" in page
    assert "`a-3`: empty: why a-3" in page


def test_a_run_that_is_not_graded_is_reported_as_such(tmp_path: Path) -> None:
    """Completion times need no grading, and no pass rate is made up."""
    document = report([write_run(tmp_path, PATCHES)])
    page = Path(document["files"]["markdown"]).read_text()
    assert "| pass rate (95% Wilson) | not graded |" in page
    assert document["runs"][0]["pass_rate"] is None
    assert document["runs"][0]["jct_mean_s"] == 10.0


def test_a_run_without_any_row_is_reported(tmp_path: Path) -> None:
    """A server that never answered leaves a report, with nothing measured in it."""
    document = report([write_run(tmp_path, {}, rows=[], instance_ids=["a-1"], ended_at=None)])
    assert document["runs"][0]["not_run"] == 1
    assert any("not run to its end" in line for line in document["conditions"])


def test_the_figure_is_a_picture(tmp_path: Path) -> None:
    """One PNG of some size, named in the page."""
    document = report([write_graded(tmp_path)])
    picture = Path(document["files"]["figure"]).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000
    assert "![report.png](report.png)" in Path(document["files"]["markdown"]).read_text()


def test_another_report_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only with --force, except for a run's own folder."""
    folder = str(write_graded(tmp_path / "run"))
    out = ["--out", str(tmp_path / "report")]
    assert report_command.main([folder, *out]) == 0
    assert report_command.main([folder, *out]) == 2
    assert "--force" in capsys.readouterr().err
    assert report_command.main([folder, *out, "--force"]) == 0
    assert [report_command.main([folder]) for _ in range(2)] == [0, 0]


def test_several_runs_are_reported_in_a_folder_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --out: a new one where the user is, named in the last line."""
    monkeypatch.chdir(tmp_path)
    folders = [str(write_graded(tmp_path / name)) for name in ("ours", "stock")]
    assert report_command.main(folders) == 0
    (folder,) = tmp_path.glob("swebench-report-*")
    files = json.loads(capsys.readouterr().out.splitlines()[-1])["files"]
    assert files["markdown"] == f"{folder.name}/report.md"
    assert (folder / "report.md").exists()


def test_the_last_line_is_one_json_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page goes before it, or to standard error with --json."""
    folder = str(write_graded(tmp_path))
    assert report_command.main([folder]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# SWE-bench")
    assert json.loads(out.splitlines()[-1])["runs"][0]["resolved"] == 1
    assert report_command.main([folder, "--json"]) == 0
    json.loads(capsys.readouterr().out)


def test_an_unknown_baseline_is_refused(tmp_path: Path) -> None:
    """The names that there are stand in the message."""
    with pytest.raises(SwebenchError, match="continuum"):
        compare([write_graded(tmp_path)], baseline="priority")


def test_a_broken_evaluation_is_named(tmp_path: Path) -> None:
    """A file that is no evaluation is not taken for an empty one."""
    (tmp_path / "eval.json").write_text('{"results": {"a-1": {}}}')
    with pytest.raises(SwebenchError, match="--redo"):
        read_eval(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("run.json", '{"run_id": "r", "policy": "p", "instance_ids": null}', "no list of names"),
        ("run.json", '{"run_id": "r", "policy": "p", "instance_ids": ["a", "a"]}', "each once"),
        ("preds.json", '{"a-1": "one"}', "no prediction of a-1"),
        ("preds.json", "{}", "no prediction of a-1"),
    ],
)
def test_a_damaged_run_is_named(tmp_path: Path, name: str, content: str, told: str) -> None:
    """A lost patch, above all, is not taken for an empty one."""
    folder = write_run(tmp_path, PATCHES)
    (folder / name).write_text(content)
    with pytest.raises(SwebenchError, match=f"{name}: .*{told}"):
        read_run(folder)


def test_a_row_without_times_is_named(tmp_path: Path) -> None:
    """There is no report of it."""
    rows = [row("a-1", end_s=None)]
    with pytest.raises(SwebenchError, match="the row of a-1 has no start_s and end_s"):
        report([write_run(tmp_path, {"a-1": "one"}, rows=rows)])


def test_a_broken_row_is_named(tmp_path: Path) -> None:
    """File and line of what is no row."""
    folder = write_run(tmp_path, PATCHES)
    (folder / "instances.jsonl").write_text("[]\n")
    with pytest.raises(SwebenchError, match="line 1"):
        read_run(folder)
