"""Facts about loading instances, choosing among them, and naming their images."""

import json
from datetime import datetime
from pathlib import Path

import pytest
from minisweagent.run.benchmarks.swebench import get_swebench_docker_image_name

from agentkv import cli
from agentkv.evals.swebench.instances import SwebenchError, image_name, load_instances

ROW = {
    "instance_id": "django__django-1",
    "problem_statement": "It fails.",
    "repo": "django/django",
    "base_commit": "abc",
    "FAIL_TO_PASS": '["t1"]',
}


def test_all_kinds_of_files_say_the_same(tmp_path: Path) -> None:
    """Rows stay as the harness wants them, in every kind of file; dates of Parquet become text."""
    from pyarrow import Table, parquet

    rows = [ROW, {**ROW, "instance_id": "django__django-2", "FAIL_TO_PASS": '["t1", "t2"]'}]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(Table.from_pylist(rows), tmp_path / "a.parquet")
    for path in tmp_path.iterdir():
        assert load_instances(str(path)) == rows
    dated = Table.from_pylist([{**ROW, "created_at": datetime(2025, 1, 1)}])
    parquet.write_table(dated, tmp_path / "a.parquet")
    (instance,) = load_instances(str(tmp_path / "a.parquet"))
    assert instance["created_at"].startswith("2025-01-01")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", "[]", "no instance is left of 0"),
        ("a.json", "{", "no instances can be read"),
        ("a.json", '{"a": 1}', "no instances can be read"),
        ("a.jsonl", '{"instance_id": "x"}\n', "lacks problem_statement, repo, base_commit"),
        ("a.csv", "", "allowed is a file"),
        ("none.jsonl", None, "No such file"),
    ],
)
def test_a_file_that_is_no_dataset(
    tmp_path: Path, name: str, content: str | None, words: str
) -> None:
    """The error names what is wrong."""
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(SwebenchError, match=words):
        load_instances(str(tmp_path / name))


@pytest.mark.parametrize(
    ("slice_", "filter_", "found"),
    [
        ("", "agentkv__interv", ["intervals-1", "intervals-2"]),
        ("1:3", "", ["textgrid-2", "intervals-1"]),
        (":1", ".*-2$", ["textgrid-2"]),
        ("a:b", "", "slice 'a:b'"),
        ("", "(", "filter '\\('"),
        ("9:", "", "no instance is left of 6"),
    ],
)
def test_filter_then_slice(slice_: str, filter_: str, found: list[str] | str) -> None:
    """The slice is of what the filter leaves; a malformed one, or nothing left, is refused."""
    if isinstance(found, str):
        with pytest.raises(SwebenchError, match=found):
            load_instances("demo", slice_, filter_)
    else:
        chosen = load_instances("demo", slice_, filter_)
        assert [one["instance_id"] for one in chosen] == [f"agentkv__{name}" for name in found]


@pytest.mark.parametrize(
    ("fields", "image"),
    [
        ({"image": "swebench/x:latest"}, "docker.io/swebench/x:latest"),
        ({"image_name": "mine:1"}, "docker.io/mine:1"),
        ({"docker_image": "ghcr.io/me/x:1", "image": "other"}, "ghcr.io/me/x:1"),
        ({"image": "localhost/x"}, "localhost/x"),
        ({"image": "registry:5000/x"}, "registry:5000/x"),
    ],
)
def test_the_image_is_named_with_its_registry(fields: dict[str, str], image: str) -> None:
    """An image has its registry, and without a field the name that mini-swe-agent chooses."""
    assert image_name({**ROW, **fields}) == image
    assert image_name(ROW) == get_swebench_docker_image_name(ROW)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "lifo"], "policy: got 'lifo'"),
        (["--base-url", "http://127.0.0.1:9", "--", "--dtype", "x"], "drop one of the two"),
        (["--text", "--config", "no-such-file"], "Could not find config file"),
        ([], "--enable-auto-tool-choice"),
        (["--base-url", "http://127.0.0.1:9/v1"], "http://127.0.0.1:9/v1/models: no answer"),
    ],
)
def test_bad_usage_is_named(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bubblewrap: str,
    arguments: list[str],
    words: str,
) -> None:
    """Bad flags end the command with status 2 and one line, before anything is started."""
    monkeypatch.chdir(tmp_path)
    text = [] if not arguments or "--text" in arguments else ["--text"]
    assert cli.main(["swebench", "run", *text, *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
