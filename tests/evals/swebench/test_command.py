"""Facts about the flags of `agentkv swebench`, and about the plan that --dry-run prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentkv import cli
from agentkv.evals.swebench import command
from agentkv.evals.swebench.instances import image_name, load_instances

VERIFIED = Path(__file__).parents[4] / "shared" / "swebench" / "Verified.test.parquet"
TOOLS = ("--", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")


def described(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The document that --dry-run prints."""
    assert command.main(["run", "--dry-run", "--json", *arguments]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_a_dry_run_starts_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It prints the server's flags, the policy's among them; the suite needs no containers."""
    out = tmp_path / "run"
    arguments = ["--out", str(out), "--policy", "continuum:paper"]
    document = described(capsys, *arguments, *TOOLS)
    assert not out.exists()
    assert document["server_flags"][:3] == list(TOOLS[1:])
    assert '"ttl": "paper"' in document["server_flags"][-1]
    assert (document["settings"]["environment"], document["images"]) == ("bubblewrap", {})
    document = described(capsys, "--text", "--environment", "podman")
    assert len(set(document["images"].values())) == 3


@pytest.mark.skipif(not VERIFIED.exists(), reason="the file of SWE-bench Verified is not here")
def test_the_plan_of_the_full_run(capsys: pytest.CaptureFixture[str]) -> None:
    """It has 500 instances and their official images."""
    instances = load_instances(str(VERIFIED))
    assert all(one["FAIL_TO_PASS"] and one["eval_script"] and one["patch"] for one in instances)
    document = described(capsys, "--instances", str(VERIFIED), "--workers", "16", *TOOLS)
    official = [image_name({**one, "image": None}) for one in instances]
    assert list(document["images"].values()) == official
    assert document["instances"] == len(official) == 500
    assert document["settings"]["environment"] == "docker"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "lifo"], "policy: got 'lifo'"),
        (["--text", "--slice", "7:"], "no instance is left"),
        (["--text", "--instances", "none.json"], "cannot be read"),
        (["--base-url", "http://127.0.0.1:9", "--", "--dtype", "x"], "drop one of the two"),
        (["--text", "--config", "no-such-file"], "Could not find config file"),
        (["--workers", "0"], "--workers: got 0"),
        (["--environment", "vm"], "--environment: got 'vm'"),
        (["--text", "--environment", "podman"], "podman is not installed"),
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
    try:
        status: object = cli.main(["swebench", "run", *arguments])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
