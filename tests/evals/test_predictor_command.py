"""`agentkv eval-predictor` from end to end on a made-up trace, and on bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentkv.cli import main as agentkv
from agentkv.evals.eval_predictor import main
from agentkv.evals.predictor_models import read_models

from .trace_rows import synthetic_lines, write_lines

QUICK = ("--kinds", "first_word,rules", "--resamples", "10", "--min-family-rows", "10")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "trace.jsonl", synthetic_lines())


def test_all_splits_give_rows_of_every_predictor(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One JSON document on standard output, each row with its commit, versions, seed, config."""
    assert agentkv(["eval-predictor", str(trace), *QUICK, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    seen = {(row["split"], row["mode"], row["kind"]) for row in document["rows"]}
    kinds = ("first_word", "rules")
    assert seen == {
        (split, mode, kind)
        for split, mode in (
            ("time", "frozen"),
            ("time", "online"),
            ("session", "frozen"),
            ("session", "online"),
            ("tool", "frozen"),
        )
        for kind in kinds
    }
    for row in document["rows"]:
        assert {"commit", "versions", "seed", "config"} <= set(row)


def test_the_report_is_written_and_never_overwritten(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON, Markdown and a picture; a second run needs --force."""
    asked = [str(trace), *QUICK, "--split", "time", "--out", str(tmp_path / "out")]
    assert main(asked) == 0
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert document["traces"][0]["rows"] == 120
    assert "| first_word |" in (tmp_path / "out" / "report.md").read_text()
    assert (tmp_path / "out" / "report.png").read_bytes().startswith(b"\x89PNG")
    assert main(asked) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*asked, "--force"]) == 0


@pytest.mark.parametrize("flags", [["--out"], ["--train", "--models-out"]])
def test_a_place_that_cannot_be_is_told_before_the_work(
    flags: list[str], trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of reports and of models: exit status 2, and nothing judged."""
    place = str(trace / "below" / "a-file")
    assert main([str(trace), *QUICK, "--split", "time", *flags, place]) == 2
    captured = capsys.readouterr()
    assert "a-file" in captured.err
    assert captured.out == ""


def test_a_report_that_cannot_be_written_is_printed(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was judged is not lost with it; exit status 1."""
    (tmp_path / "report.json").symlink_to("/dev/full")
    asked = [str(trace), *QUICK, "--split", "time", "--out", str(tmp_path), "--force", "--json"]
    assert main(asked) == 1
    captured = capsys.readouterr()
    assert "No space left" in captured.err
    assert json.loads(captured.out)["rows"]


def test_the_same_seed_gives_the_same_scores(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for the times, which are measured."""
    documents = []
    for _ in range(2):
        assert main([str(trace), *QUICK, "--split", "session", "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        documents.append(
            [
                {k: v for k, v in row.items() if k not in ("predict_us", "observe_us")}
                for row in rows
            ]
        )
    assert documents[0] == documents[1]


def test_training_writes_models_that_can_be_used(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --train-share 1 nothing is judged; the file then serves as --models."""
    models = tmp_path / "models.json"
    training = [str(trace), "--train", "--train-share", "1", "--models-out", str(models)]
    assert main(training) == 0
    assert read_models(models).to_dict() == json.loads(models.read_text())
    assert "trained on 120 commands" in capsys.readouterr().out
    asked = ["--split", "cold", "--kinds", "default", "--models", str(models), "--json"]
    assert main([str(trace), *asked, "--resamples", "10"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {(row["split"], row["kind"]) for row in rows} == {("cold", "default")}


@pytest.mark.parametrize(("limit", "status"), [("0.5", 0), ("1.01", 1)])
def test_a_requirement_not_reached_is_status_1(
    trace: Path, limit: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is required of the default predictor on the time split."""
    asked = ["--kinds", "default", "--split", "time", "--models", "shipped", "--resamples", "0"]
    assert main([str(trace), *asked, "--require", f"auc_5={limit}", "--json"]) == status
    document = json.loads(capsys.readouterr().out)
    assert document["passed"] is (status == 0)
    assert len(document["problems"]) == status


def test_two_traces_are_also_split_by_trace(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is judged after learning from the other."""
    other = write_lines(tmp_path / "other.jsonl", synthetic_lines(40, seed=1))
    asked = [str(trace), str(other), *QUICK, "--split", "trace", "--json"]
    assert main(asked) == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert (row["num_train"], row["num_test"]) == ([40, 120], 160)


def test_a_trace_of_one_class_has_no_auc(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """null in the document, a dash in the table, never a crash."""
    lines = [line | {"duration_s": 0.1, "censored": False} for line in synthetic_lines(40)]
    path = write_lines(tmp_path / "short.jsonl", [line | {"timeout_s": None} for line in lines])
    out = tmp_path / "out"
    assert main([str(path), *QUICK, "--split", "time", "--out", str(out), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert row["auc"] == {"1": None, "2": None, "5": None, "10": None}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--models-out", "m.json"], "--train"),
        (["--train"], "--out"),
        (["--train-share", "1"], "--train"),
        (["--split", "cold"], "--models"),
        (["--kinds", "rules", "--require", "auc_5=0.9"], "default"),
        (["--models", "no-such-file.json"], "no-such-file.json"),
        (["--split", "trace"], "too small"),
    ],
)
def test_options_that_do_not_fit_are_explained(
    trace: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2 and one line on standard error."""
    assert main([str(trace), *options]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [
        ["--kinds", "oracle"],
        ["--kinds", ""],
        ["--split", "random"],
        ["--train-share", "0"],
        ["--reload-s", "nan"],
        ["--session-folds", "1"],
        ["--require", "speed=9"],
        ["--require", "auc_5=high"],
    ],
)
def test_bad_values_are_bad_usage(trace: Path, options: list[str]) -> None:
    """argparse's own status, 2."""
    with pytest.raises(SystemExit) as raised:
        main([str(trace), *options])
    assert raised.value.code == 2


def test_an_unusable_trace_is_bad_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2, and the file and the line on standard error."""
    path = tmp_path / "trace.jsonl"
    path.write_text("nonsense\n")
    assert main([str(path)]) == 2
    assert "trace.jsonl: line 1 is not JSON" in capsys.readouterr().err


def test_a_single_command_is_too_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing to learn from."""
    path = write_lines(tmp_path / "one.jsonl", synthetic_lines(1))
    assert main([str(path)]) == 2
    assert "too few" in capsys.readouterr().err


def test_a_file_of_other_json_is_no_models(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message says what writes one."""
    path = tmp_path / "models.json"
    path.write_text("[]")
    assert main([str(trace), "--models", str(path)]) == 2
    assert "--train" in capsys.readouterr().err


def test_rows_that_teach_nothing_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two commands make no models: status 2 and what to do instead."""
    path = write_lines(tmp_path / "two.jsonl", synthetic_lines(2))
    assert main([str(path), "--split", "time", "--train-share", "0.5"]) == 2
    assert "--models shipped" in capsys.readouterr().err


def test_a_trace_named_twice_is_bad_usage(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The split by trace would judge what it has learned."""
    assert main([str(trace), str(trace)]) == 2
    assert "twice" in capsys.readouterr().err
