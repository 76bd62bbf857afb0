"""The study runs from end to end on a made-up trace, and explains bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentkv.durations.trees import train_models
from agentkv.evals.workload.traces import read_trace
from studies.predictor.__main__ import main
from studies.predictor.replay import time_part
from tests.evals.trace_rows import synthetic_lines, write_lines

QUICK = ("--kinds", "first_word", "rules", "--models", "shipped", "--resamples", "2")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "trace.jsonl", synthetic_lines(240))


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, list[dict[str, object]]]:
    """The JSON document, which is the last line of standard output."""
    found: dict[str, list[dict[str, object]]] = json.loads(capsys.readouterr().out.split("\n")[-2])
    return found


def test_all_splits_give_rows_of_every_predictor(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row names its split, mode and predictor, and carries commit, versions, seed, config."""
    other = write_lines(tmp_path / "other.jsonl", synthetic_lines(60, seed=1))
    assert main([str(trace), str(other), *QUICK]) == 0
    rows = document(capsys)["rows"]
    online = ("time", "session", "trace")
    assert {(row["split"], row["mode"], row["kind"]) for row in rows} == {
        (split, mode, kind)
        for kind in ("first_word", "rules")
        for split, mode in [
            *((split, mode) for split in online for mode in ("frozen", "online")),
            ("tool", "frozen"),
        ]
    }
    assert all({"commit", "versions", "seed", "config"} <= set(row) for row in rows)


def test_the_report_is_written_and_never_overwritten(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second run needs --force to replace the files, and a trace of one class has no AUC."""
    out = tmp_path / "out"
    asked = [str(trace), *QUICK, "--split", "time", "tool", "--out", str(out)]
    assert main(asked) == 0
    assert len((out / "rows.jsonl").read_text().splitlines()) == 6
    assert "| first_word " in (out / "report.md").read_text()
    assert (out / "report.png").read_bytes().startswith(b"\x89PNG")
    assert main(asked) == 2
    assert "--force" in capsys.readouterr().err
    of_one_class = [{"command": "ls", "duration_s": 0.1}] * 40
    write_lines(trace, of_one_class)
    assert main([*asked, "--force"]) == 0
    assert " - |" in (out / "report.md").read_text()
    assert document(capsys)["rows"][0]["auc_5"] is None


def test_written_models_are_those_of_the_first_70_percent(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--write-models trains on the rows that the time split learns; shipped models judge cold."""
    models = tmp_path / "models.json"
    asked = [str(trace), "--kinds", "default", "--resamples", "0", "--models", "shipped"]
    assert main([*asked, "--split", "cold", "--write-models", str(models)]) == 0
    trained = train_models(time_part(read_trace(trace)), seed=0)
    assert json.loads(models.read_text()) == json.loads(json.dumps(trained.to_dict()))
    rows = document(capsys)["rows"]
    assert [(row["split"], row["mode"]) for row in rows] == [("cold", "frozen"), ("cold", "online")]


@pytest.mark.parametrize(
    ("num_lines", "options", "said"),
    [
        (60, ["--split", "trace"], "too few"),
        (60, ["TRACE"], "twice"),
        (60, ["--split", "time", "--kinds", "default"], "--models shipped"),
        (1, [], "too few"),
        (0, [], "trace.jsonl: no measured command"),
    ],
)
def test_what_cannot_be_judged_is_explained(
    num_lines: int,
    options: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Options that do not fit and traces too small are exit status 2 and one line on stderr."""
    trace = write_lines(tmp_path / "trace.jsonl", synthetic_lines(num_lines))
    given = [option.replace("TRACE", str(trace)) for option in options]
    assert main([str(trace), *given]) == 2
    assert said in capsys.readouterr().err.splitlines()[-1]
