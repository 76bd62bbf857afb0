"""Facts about the flags of `agentkv swebench run`, and about the plan that --dry-run prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentkv import cli
from agentkv.evals.swebench import run_command, swebench
from agentkv.evals.swebench.run_plan import IMAGE_BYTES

VERIFIED = Path(__file__).parents[4] / "shared" / "swebench" / "Verified.test.parquet"
TOOLS = ("--", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")


def described(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, dict[str, Any]]:
    """What --dry-run says, for a person and as JSON."""
    assert run_command.main(["--dry-run", *arguments]) == 0
    text, _, last = capsys.readouterr().out.rstrip("\n").rpartition("\n")
    document: dict[str, Any] = json.loads(last)
    return text, document


def test_the_subcommand_is_agentkvs(capsys: pytest.CaptureFixture[str]) -> None:
    """`agentkv swebench` lists what there is."""
    assert cli.main(["swebench", "--help"]) == 0
    assert cli.main(["swebench", "nonsense"]) == 2
    said = capsys.readouterr().err
    assert all(f"  {name} " in said for name in swebench.SUBCOMMANDS)


def test_a_dry_run_starts_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It says which server it would start, with the policy's flags."""
    out = tmp_path / "run"
    text, document = described(
        capsys, "--out", str(out), "--policy", "continuum:paper", "--model", "m", *TOOLS
    )
    assert not out.exists()
    assert document["server"]["command"].startswith(
        "agentkv serve m --scheduling-policy continuum --enable-auto-tool-choice"
    )
    assert '"ttl": "paper"' in document["server"]["command"]
    assert document["server"]["command"] in text


@pytest.mark.skipif(not VERIFIED.exists(), reason="the file of SWE-bench Verified is not here")
def test_the_plan_of_the_full_run(capsys: pytest.CaptureFixture[str]) -> None:
    """500 instances with their official images and the disk that they take."""
    text, document = described(
        capsys, "--instances", str(VERIFIED), "--workers", "16", "--environment", "docker", *TOOLS
    )
    assert document["instances"] == len(document["images"]) == 500
    image = "docker.io/swebench/sweb.eval.x86_64.astropy_1776_astropy-12907:latest"
    assert document["images"]["astropy__astropy-12907"] == image
    assert document["disk"]["images_bytes_estimate"] == 500 * IMAGE_BYTES
    assert document["step_limit"] == 250
    assert "... and 490 more" in text
    assert "about 240 GiB" in text


def test_the_suite_needs_no_container(capsys: pytest.CaptureFixture[str]) -> None:
    """Unless one is asked for."""
    assert described(capsys, "--text")[1]["environment"] == "bubblewrap"
    _, document = described(capsys, "--text", "--environment", "podman")
    assert document["disk"]["num_images"] == 3


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--policy", "lifo"], "policy: got 'lifo'"),
        (["--text", "--slice", "7:"], "no instance is left"),
        (["--text", "--instances", "none.json"], "cannot be read"),
        (["--text", "--environment", "local"], "--i-know-this-is-unsafe"),
        (["--base-url", "http://127.0.0.1:9", "--", "--dtype", "x"], "drop one of the two"),
        (["--text", "--config", "no-such-file"], "Could not find config file"),
        ([], "--enable-auto-tool-choice"),
    ],
)
def test_bad_usage_is_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    """Status 2, before anything is started."""
    assert run_command.main(arguments) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--workers", "0"],
        ["--jps", "0"],
        ["--workers", "2", "--jps", "1"],
        ["--resume", "--force"],
        ["--environment", "vm"],
    ],
)
def test_flags_that_make_no_sense(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """argparse says which."""
    with pytest.raises(SystemExit) as ended:
        run_command.main(arguments)
    assert ended.value.code == 2
    assert "error: argument" in capsys.readouterr().err


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Its address is in the message."""
    arguments = ["--base-url", "http://127.0.0.1:9/v1", "--out", str(tmp_path / "run")]
    assert run_command.main(arguments) == 2
    assert "http://127.0.0.1:9/v1/models: no answer" in capsys.readouterr().err
