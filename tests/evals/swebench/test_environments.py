"""Facts about where an agent's commands run, and about the repositories that they work on."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from minisweagent.environments import get_environment

from agentkv.evals.swebench.batch import start_environment
from agentkv.evals.swebench.instances import SwebenchError
from agentkv.evals.swebench.suite import sandbox_settings
from tests.evals.swebench.run_folders import SUITE

INSTANCE = {**SUITE[0], "image_name": "docker.io/x:1"}


@pytest.fixture
def sandbox(bubblewrap: str, tmp_path: Path) -> Any:
    """A bubblewrap environment with the first instance's repository."""
    return get_environment(sandbox_settings(INSTANCE, tmp_path))


def said(environment: Any, command: str) -> tuple[int, str]:
    output = environment.execute({"command": command})
    return output["returncode"], output["output"].strip()


def test_a_sandbox_has_its_repository_at_testbed(sandbox: Any) -> None:
    """It holds the instance's commit alone, and what a command writes stays for the next."""
    commit = INSTANCE["base_commit"]
    assert said(sandbox, "cd /testbed && git log --all --format=%H") == (0, commit)
    assert said(sandbox, "git status --porcelain; ls") == (0, "README.md\ntests\ntextgrid")
    assert said(sandbox, "echo 1 > new; echo 2 > /tmp/other") == (0, "")
    assert said(sandbox, "cat /testbed/new /tmp/other") == (0, "1\n2")


@pytest.mark.parametrize(
    ("script", "fields", "words"),
    [
        ("echo 'Error: unknown' >&2; exit 125", {}, "docker.io/x:1: .*podman.* 125.*unknown"),
        ("sleep 60", {}, "docker.io/x:1: .*podman.*timed out after 1 seconds"),
        (None, {}, "No such file or directory: 'podman'"),
        ("sandbox", {"repo": "django/django"}, "django/django lies in its image: use docker"),
        ("sandbox", {"base_commit": "0" * 40}, "git.* exit status 128. fatal: .*0000"),
    ],
    ids=["refused", "late", "missing", "foreign", "no commit"],
)
def test_an_environment_that_cannot_be_had_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str | None,
    fields: dict[str, str],
    words: str,
) -> None:
    """The error holds the image and the program's own words, and so does the trajectory."""
    program = tmp_path / "podman"
    if script is not None:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    kind = "bubblewrap" if script == "sandbox" else "docker"
    environment = {"environment_class": kind, "executable": "podman", "pull_timeout": 1}
    config = {"environment": environment, "agent": {"run_id": "r"}}
    with pytest.raises(SwebenchError, match=words) as caught:
        start_environment(tmp_path, tmp_path, config, INSTANCE | fields)
    name = INSTANCE["instance_id"]
    info = json.loads((tmp_path / name / f"{name}.traj.json").read_text())["info"]
    assert info["exception_str"] == str(caught.value)
