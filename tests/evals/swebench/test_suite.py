"""Facts about the suite of our own: its commits, its patches and its tests hold together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentkv.evals.swebench.errors import SwebenchError
from agentkv.evals.swebench.instances import Instance, load_instances
from agentkv.evals.swebench.suite import prepare
from agentkv.evals.swebench.worktree import fresh_worktree

SUITE = load_instances("demo")


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """prepare() itself compares the commits with the instances'."""
    return prepare(tmp_path_factory.mktemp("suite"))


def apply(patch: str, folder: Path) -> None:
    subprocess.run(["git", "apply", "-"], cwd=folder, input=patch, text=True, check=True)


def outcomes(instance: Instance, folder: Path) -> dict[str, str]:
    """What pytest says of each test in the files of the instance's tests."""
    files = {name.partition("::")[0] for name in instance.fail_to_pass}
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *sorted(files)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    return {
        words[1]: words[0] for words in lines if words[:1] in (["PASSED"], ["FAILED"], ["ERROR"])
    }


def test_there_are_six_in_three_repositories() -> None:
    """At least five instances, over two or three repositories."""
    assert len(SUITE) == 6
    assert len({one.repo for one in SUITE}) == 3


def test_commits_are_the_same_everywhere(repositories: dict[str, Path]) -> None:
    """Made here, they have the hashes that the instances name; if not, prepare() raises."""
    assert set(repositories) == {one.instance_id for one in SUITE}


def test_preparing_again_reuses_what_is_there(repositories: dict[str, Path]) -> None:
    """The second call changes nothing."""
    folder = next(iter(repositories.values())).parent
    stamps = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert prepare(folder) == repositories
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == stamps


def test_a_changed_repository_is_refused(tmp_path: Path) -> None:
    """Patches were made for one commit."""
    path = prepare(tmp_path)[SUITE[0].instance_id]
    me = ["-c", "user.name=x", "-c", "user.email=x@localhost"]
    commit = ["git", *me, "commit", "--quiet", "--allow-empty", "--message", "More"]
    subprocess.run(commit, cwd=path, check=True)
    with pytest.raises(SwebenchError, match="is at commit"):
        prepare(tmp_path)


@pytest.mark.parametrize("instance", SUITE, ids=lambda one: one.instance_id)
def test_patches_apply_and_touch_different_files(
    instance: Instance, repositories: dict[str, Path], tmp_path: Path
) -> None:
    """The solution changes sources only, the tests' patch tests only."""
    with fresh_worktree(instance, repositories[instance.instance_id], tmp_path) as worktree:
        apply(instance.patch, worktree.path)
        apply(instance.test_patch, worktree.path)
    assert "b/tests/" not in instance.patch
    assert all("/tests/" in line for line in instance.test_patch.splitlines() if "+++" in line)


@pytest.mark.slow
@pytest.mark.parametrize("instance", SUITE, ids=lambda one: one.instance_id)
def test_the_solution_is_what_makes_the_tests_pass(
    instance: Instance, repositories: dict[str, Path], tmp_path: Path
) -> None:
    """FAIL_TO_PASS and PASS_TO_PASS are exactly what the solution turns and keeps."""
    with fresh_worktree(instance, repositories[instance.instance_id], tmp_path) as worktree:
        apply(instance.test_patch, worktree.path)
        before = outcomes(instance, worktree.path)
        apply(instance.patch, worktree.path)
        after = outcomes(instance, worktree.path)
    assert {name for name, said in before.items() if said != "PASSED"} == {*instance.fail_to_pass}
    assert {name for name, said in before.items() if said == "PASSED"} == {*instance.pass_to_pass}
    assert set(after.values()) == {"PASSED"}
    assert set(after) == set(before)
