"""Facts about where an agent's commands run, and about the repositories that they work on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from minisweagent.exceptions import Submitted

from agentkv.evals.swebench.environments import git, missing, prepare_suite, start_environment
from agentkv.evals.swebench.instances import SwebenchError
from tests.evals.swebench.run_folders import SUITE

INSTANCE = SUITE[0]
CONFIG = {"environment": {"environment_class": "local", "cwd": "/testbed", "timeout": 20}}


@pytest.fixture
def sandbox(bubblewrap: str, tmp_path: Path) -> Any:
    """A bubblewrap environment on a clone of the first instance's repository."""
    prepare_suite(tmp_path / "repositories")
    return start_environment("bubblewrap", tmp_path, CONFIG, INSTANCE)


def said(environment: Any, command: str) -> tuple[int, str]:
    output = environment.execute({"command": command})
    return output["returncode"], output["output"].strip()


def test_a_sandbox_has_a_clone_at_testbed(sandbox: Any, tmp_path: Path) -> None:
    """It holds the instance's commit alone, and what a command writes stays for the next."""
    commit = INSTANCE["base_commit"]
    assert said(sandbox, "cd /testbed && git log --all --format=%H") == (0, commit)
    assert said(sandbox, "git status --porcelain; ls") == (0, "README.md\ntests\ntextgrid")
    assert said(sandbox, "echo 1 > new; echo 2 > /tmp/other") == (0, "")
    assert said(sandbox, "cat /testbed/new /tmp/other") == (0, "1\n2")
    said(sandbox, "rm -rf /testbed/* /testbed/.git; echo gone > README.md")
    assert "textgrid" in (tmp_path / "repositories" / "textgrid" / "README.md").read_text()


def test_a_sandbox_hides_the_host(sandbox: Any, tmp_path: Path) -> None:
    """A command sees no file, variable or network of the host, and changes no program."""
    (tmp_path / "secret").write_text("x")
    assert said(sandbox, f"cat {tmp_path}/secret")[0] != 0
    assert said(sandbox, "env | grep -c PYTEST_CURRENT_TEST") == (1, "0")
    assert said(sandbox, "grep -c : /proc/net/dev") == (0, "1")
    assert said(sandbox, "touch /usr/x")[0] != 0


def test_the_model_gets_a_result_of_every_command(sandbox: Any) -> None:
    """A time-out or a failed start is a result with its reason, and a submission ends the loop."""
    slow = sandbox.execute({"command": "echo begun; sleep 30"}, timeout=1)
    assert (slow["output"], slow["returncode"]) == ("begun\n", -1)
    assert "timed out after 1 seconds" in slow["exception_info"]
    assert "null byte" in sandbox.execute({"command": "echo a\0b"})["exception_info"]
    with pytest.raises(Submitted) as caught:
        said(sandbox, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo the patch")
    assert caught.value.messages[0]["extra"]["submission"] == "the patch\n"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'Error: manifest unknown' >&2; exit 125", "podman ended: .*manifest unknown"),
        ("sleep 60", "no container after 1 s: pull it beforehand"),
        (None, "podman is not installed"),
    ],
)
def test_an_image_that_cannot_be_had_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, words: str
) -> None:
    """The error holds the image and the container program's own words."""
    program = tmp_path / "podman"
    if script is not None:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    config = {"environment": {"pull_timeout": 1}}
    with pytest.raises(SwebenchError, match=f"docker.io/{INSTANCE['image']}: {words}"):
        start_environment("podman", tmp_path, config, INSTANCE)
    assert (missing("podman") is None) == (script is not None)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"repo": "django/django"}, "django/django lies in its image: use docker or podman"),
        ({"base_commit": "0" * 40}, "not our ref"),
    ],
)
def test_a_repository_that_cannot_be_had_is_named(
    tmp_path: Path, fields: dict[str, str], words: str
) -> None:
    """Only the suite's repositories are here; a commit must be in its repository."""
    prepare_suite(tmp_path / "repositories")
    with pytest.raises(SwebenchError, match=words):
        start_environment("bubblewrap", tmp_path, CONFIG, {**INSTANCE, **fields})


def test_the_suites_commits_are_the_same_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repositories begin at the instances' commits; preparing twice changes nothing."""
    for _ in range(2):
        prepare_suite(tmp_path)
        for one in SUITE:
            folder = tmp_path / one["repo"].partition("/")[2]
            assert git("-C", str(folder), "rev-parse", "HEAD") == one["base_commit"]
    assert (len(SUITE), len(list(tmp_path.iterdir()))) == (6, 3)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SwebenchError, match="git is not installed"):
        prepare_suite(tmp_path / "other")
