"""Facts about where an agent's commands run, and about the repositories that they work on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from minisweagent.exceptions import Submitted

from agentkv.evals.swebench.environments import (
    EnvironmentPlan,
    commit_all,
    find_repository,
    fresh_sandbox,
    missing,
    prepare_suite,
)
from agentkv.evals.swebench.instances import Instance, SwebenchError
from tests.evals.swebench.run_folders import SUITE

INSTANCE = SUITE[0]
CONFIG = {"environment": {"environment_class": "local", "cwd": "/testbed", "timeout": 20}}


@pytest.fixture
def sandbox(bubblewrap: str, repositories: dict[str, Path], tmp_path: Path) -> Iterator[Any]:
    """A bubblewrap environment on a copy of the first instance's repository."""
    with ExitStack() as stack:
        plan = EnvironmentPlan("bubblewrap", repositories, tmp_path / "w")
        yield plan.start(INSTANCE, CONFIG, stack)


def said(environment: Any, command: str) -> tuple[int, str]:
    output = environment.execute({"command": command})
    return output["returncode"], output["output"].strip()


def git(folder: Path, *arguments: str) -> str:
    me = ("-c", "user.name=x", "-c", "user.email=x@localhost")
    command = ["git", "-C", str(folder), *me, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_sandbox_has_the_repository_at_testbed(
    sandbox: Any, repositories: dict[str, Path]
) -> None:
    """Commands begin in a copy at the instance's commit, and what they write stays for the next."""
    assert said(sandbox, "pwd; git rev-parse HEAD") == (0, f"/testbed\n{INSTANCE.base_commit}")
    assert said(sandbox, "echo 1 > new; echo 2 > /tmp/other") == (0, "")
    assert said(sandbox, "cat new /tmp/other") == (0, "1\n2")
    said(sandbox, "rm -rf /testbed/* /testbed/.git; echo gone > README.md")
    assert "textgrid" in (repositories[INSTANCE.instance_id] / "README.md").read_text()


def test_a_sandbox_hides_the_host(sandbox: Any, tmp_path: Path) -> None:
    """A command sees no file or variable of the host, and the trajectory names no host folder."""
    (tmp_path / "secret").write_text("x")
    assert said(sandbox, f"cat {tmp_path}/secret")[0] != 0
    assert said(sandbox, "env | grep -c PYTEST_CURRENT_TEST") == (1, "0")
    assert str(tmp_path) not in str(sandbox.serialize()) + str(sandbox.get_template_vars())


def test_the_model_gets_a_result_of_every_command(sandbox: Any) -> None:
    """A time-out or a failed start is a result with its reason, and a submission ends the loop."""
    slow = sandbox.execute({"command": "echo begun; sleep 30"}, timeout=1)
    assert (slow["output"], slow["returncode"]) == ("begun\n", -1)
    assert "longer than 1 s" in slow["exception_info"]
    assert sandbox.execute({"command": "echo a\0b"})["returncode"] == 126
    assert sandbox.execute({"command": "pwd"}, "/testbed/tests")["output"] == "/testbed/tests\n"
    with pytest.raises(Submitted) as caught:
        said(sandbox, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo the patch")
    assert caught.value.messages[0]["extra"]["submission"] == "the patch\n"


def test_environments_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """`local` needs an explicit yes, and a container program must be installed."""
    assert "i-know-this-is-unsafe" in str(missing("local", is_unsafe_allowed=False))
    assert missing("local", is_unsafe_allowed=True) is None
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "docker is not installed" in str(missing("docker", is_unsafe_allowed=False))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'Error: manifest unknown' >&2; exit 125", "status 125.*manifest unknown"),
        ("sleep 60", "no container after 1 s: pull it beforehand"),
    ],
)
def test_an_image_that_cannot_be_had_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    """The error holds the image and the container program's own words."""
    program = tmp_path / "podman"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    config = {"environment": {"pull_timeout": 1}}
    with ExitStack() as stack, pytest.raises(SwebenchError, match=f"{INSTANCE.image}: .*{words}"):
        EnvironmentPlan("podman", {}, tmp_path / "w").start(INSTANCE, config, stack)


def test_local_commands_run_in_a_copy(repositories: dict[str, Path], tmp_path: Path) -> None:
    """The unprotected kind leaves the repository alone, and its copy is deleted in the end."""
    with ExitStack() as stack:
        plan = EnvironmentPlan("local", repositories, tmp_path / "w")
        environment = plan.start(INSTANCE, CONFIG, stack)
        assert said(environment, "pwd")[1].startswith(str(tmp_path / "w"))
    assert list((tmp_path / "w").iterdir()) == []


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with two commits, of which the second is the solution."""
    path = tmp_path / "clones" / "me__thing"
    path.mkdir(parents=True)
    (path / "thing.py").write_text("bug")
    commit_all(path, author="x", email="x@localhost")
    (path / "thing.py").write_text("fix")
    git(path, "commit", "--quiet", "--all", "--message", "fix")
    return path


@pytest.fixture
def instance(repository: Path) -> Instance:
    """An instance at that repository's first commit."""
    commit = git(repository, "rev-parse", "HEAD~1")
    return replace(INSTANCE, instance_id="me__thing-1", repo="me/thing", base_commit=commit)


def test_a_clone_holds_the_instances_commit_alone(
    instance: Instance, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy has that commit and no later one, touches no other repository, and is deleted."""
    solution = git(repository, "rev-parse", "HEAD")
    other = tmp_path / "other"
    other.mkdir()
    commit_all(other, author="x", email="x@localhost")
    before = git(other, "rev-parse", "HEAD")
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        with monkeypatch.context() as hook:  # git sets GIT_DIR for its hooks
            hook.setenv("GIT_DIR", str(other / ".git"))
            clone = stack.enter_context(fresh_sandbox(instance, repository, Path("w"))).workspace
        assert git(other, "rev-parse", "HEAD") == before
        assert clone.is_absolute()
        assert (clone / "thing.py").read_text() == "bug"
        assert git(clone, "log", "--all", "--format=%H") == instance.base_commit
        assert git(clone, "status", "--porcelain") == ""
        with pytest.raises(subprocess.CalledProcessError):
            git(clone, "cat-file", "-e", solution)
        stack.enter_context(pytest.raises(RuntimeError))
        raise RuntimeError
    assert list((tmp_path / "w").iterdir()) == []


def test_clones_are_found_by_instance_or_repository(
    instance: Instance, repository: Path, tmp_path: Path
) -> None:
    """A folder named like the instance goes first; without any, the error says what is needed."""
    clones, suite = repository.parent, tmp_path / "suite"
    assert find_repository(instance, given=clones, suite_folder=suite) == repository
    (clones / "me__thing-1").mkdir()
    found = find_repository(instance, given=clones, suite_folder=suite)
    assert found == clones / "me__thing-1"
    for given, words in ((tmp_path, "has none of the folders"), (None, "image")):
        with pytest.raises(SwebenchError, match=words):
            find_repository(instance, given=given, suite_folder=suite)


def test_the_suites_commits_are_the_same_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preparing twice changes nothing; a repository at another commit is refused, as is no git."""
    paths = prepare_suite(tmp_path)
    assert set(paths) == {one.instance_id for one in SUITE}
    assert (len(SUITE), len(set(paths.values()))) == (6, 3)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert prepare_suite(tmp_path) == paths
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == stamps
    git(paths[INSTANCE.instance_id], "commit", "--quiet", "--allow-empty", "--message", "More")
    with pytest.raises(SwebenchError, match="is at commit"):
        prepare_suite(tmp_path)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SwebenchError, match="git is not installed"):
        prepare_suite(tmp_path)
