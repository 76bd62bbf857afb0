"""Facts about an instance's repository and the copy that an agent gets."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from agentkv.evals.swebench.errors import SwebenchError
from agentkv.evals.swebench.instances import Instance, load_instances
from agentkv.evals.swebench.worktree import find_repositories, fresh_worktree

IDENTITY = ("-c", "user.name=x", "-c", "user.email=x@localhost")


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *IDENTITY, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits; the second one is the solution."""
    path = tmp_path / "clones" / "me__thing"
    path.mkdir(parents=True)
    git(path, "init", "--quiet", "--initial-branch=main")
    for text in ("bug", "fix"):
        (path / "thing.py").write_text(text)
        git(path, "add", "--all")
        git(path, "commit", "--quiet", "--message", text)
    return path


@pytest.fixture
def instance(tmp_path: Path, repository: Path) -> Instance:
    row = {
        "instance_id": "me__thing-1",
        "repo": "me/thing",
        "problem_statement": "It is a bug.",
        "base_commit": git(repository, "rev-parse", "HEAD~1"),
    }
    (tmp_path / "one.json").write_text(json.dumps([row]))
    return load_instances(str(tmp_path / "one.json"))[0]


def test_the_copy_is_at_the_instances_commit(
    instance: Instance, repository: Path, tmp_path: Path
) -> None:
    """With the same hash, which eval scripts name."""
    with fresh_worktree(instance, repository, tmp_path / "w") as worktree:
        assert (worktree.path / "thing.py").read_text() == "bug"
        assert git(worktree.path, "rev-parse", "HEAD") == instance.base_commit
        assert git(worktree.path, "status", "--porcelain") == ""


def test_the_copy_of_a_relative_folder_is_found_from_elsewhere(
    instance: Instance, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox is started in the copy, and binds its paths from there."""
    monkeypatch.chdir(tmp_path)
    with fresh_worktree(instance, repository, Path("w")) as worktree:
        assert worktree.path.is_absolute()
        assert worktree.scratch.is_absolute()


def test_no_other_repository_is_touched(
    instance: Instance, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the one that git names to its hooks, from which this may be called."""
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet", "--initial-branch=main")
    git(other, "commit", "--quiet", "--allow-empty", "--message", "mine")
    before = git(other, "rev-parse", "HEAD")
    with monkeypatch.context() as hook:
        hook.setenv("GIT_DIR", str(other / ".git"))
        with fresh_worktree(instance, repository, tmp_path / "w") as worktree:
            assert (worktree.path / ".git").is_dir()
    assert git(other, "rev-parse", "HEAD") == before


def test_the_solution_is_not_in_the_copy(
    instance: Instance, repository: Path, tmp_path: Path
) -> None:
    """An agent could look it up in the history otherwise."""
    solution = git(repository, "rev-parse", "HEAD")
    with fresh_worktree(instance, repository, tmp_path / "w") as worktree:
        assert git(worktree.path, "log", "--all", "--format=%H") == instance.base_commit
        with pytest.raises(subprocess.CalledProcessError):
            git(worktree.path, "cat-file", "-e", solution)


def test_nothing_is_left_of_it(instance: Instance, repository: Path, tmp_path: Path) -> None:
    """Not even after an exception."""
    held = ExitStack()
    worktree = held.enter_context(fresh_worktree(instance, repository, tmp_path / "w"))
    (worktree.scratch / "more").write_text("x")
    with pytest.raises(RuntimeError), held:
        raise RuntimeError
    assert list((tmp_path / "w").iterdir()) == []


def test_a_commit_that_is_not_there(instance: Instance, repository: Path, tmp_path: Path) -> None:
    """Git's own words are in the error."""
    elsewhere = replace(instance, base_commit="0" * 40)
    with (
        pytest.raises(SwebenchError, match=r"0000: .*not our ref"),
        fresh_worktree(elsewhere, repository, tmp_path / "w"),
    ):
        pass


def test_clones_are_found_by_instance_or_repository(
    instance: Instance, repository: Path, tmp_path: Path
) -> None:
    """A folder named like the instance goes first."""
    clones, suite = repository.parent, tmp_path / "suite"
    assert find_repositories([instance], given=clones, suite_folder=suite) == {
        "me__thing-1": repository
    }
    (clones / "me__thing-1").mkdir()
    assert find_repositories([instance], given=clones, suite_folder=suite) == {
        "me__thing-1": clones / "me__thing-1"
    }


@pytest.mark.parametrize(("given", "told"), [(True, "has none of the folders"), (False, "image")])
def test_an_instance_without_a_repository(
    instance: Instance, tmp_path: Path, given: bool, told: str
) -> None:
    """What it would take is said."""
    with pytest.raises(SwebenchError, match=told):
        find_repositories(
            [instance], given=tmp_path if given else None, suite_folder=tmp_path / "suite"
        )
