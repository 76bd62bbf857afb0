"""Where instances' repositories are, and a fresh copy of one for an agent to work in."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .errors import SwebenchError
from .instances import SUITE, Instance, load_instances
from .suite import prepare

# The copy holds one commit: what came later in the repository would give the solution away.
_UPLOAD_PACK = "git -c uploadpack.allowAnySHA1InWant=true -c safe.directory=* upload-pack"
_SHOWN_CHARS = 300


@dataclass(frozen=True, slots=True)
class Worktree:
    """`path` is the repository at the instance's commit, `scratch` an empty folder beside it."""

    instance_id: str
    path: Path
    scratch: Path


def find_repositories(
    instances: Sequence[Instance], *, given: Path | None, suite_folder: Path
) -> dict[str, Path]:
    """The git repository of each instance, by its id.

    Those of our own suite are made in `suite_folder`; others are `given/INSTANCE_ID`,
    `given/OWNER__NAME` or `given/NAME`. Raises SwebenchError for an instance that has none.
    """
    of_suite = {one.instance_id for one in load_instances(SUITE)}
    found: dict[str, Path] = {}
    if any(one.instance_id in of_suite for one in instances):
        found.update(prepare(suite_folder))
    for one in instances:
        if one.instance_id not in found:
            found[one.instance_id] = _given_repository(one, given)
    return {one.instance_id: found[one.instance_id] for one in instances}


@contextmanager
def fresh_worktree(instance: Instance, repository: Path, folder: Path) -> Iterator[Worktree]:
    """A copy of the repository at the instance's commit, without history, gone afterwards.

    Raises SwebenchError if git does not give it, for want of the commit or of space.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # absolute: the sandbox binds it from another folder, and only Python 3.12 makes it so by itself
    own = Path(tempfile.mkdtemp(prefix=f"{instance.instance_id}.", dir=folder.absolute()))
    try:
        worktree = Worktree(instance.instance_id, own / "testbed", own / "tmp")
        worktree.scratch.mkdir()
        _git("init", "--quiet", "--initial-branch=main", str(worktree.path))
        source = f"file://{repository.resolve()}"
        fetch = ("fetch", "--quiet", "--depth=1", f"--upload-pack={_UPLOAD_PACK}", source)
        _git("-C", str(worktree.path), *fetch, instance.base_commit)
        _git("-C", str(worktree.path), "reset", "--quiet", "--hard", "FETCH_HEAD")
        yield worktree
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _given_repository(instance: Instance, given: Path | None) -> Path:
    if given is None:
        raise SwebenchError(
            f"{instance.instance_id}: its repository, {instance.repo}, lies in its container "
            "image: use --environment docker or podman, or name a folder of clones with "
            "--repositories"
        )
    names = (
        instance.instance_id,
        instance.repo.replace("/", "__"),
        instance.repo.rpartition("/")[2],
    )
    for name in names:
        if (given / name).is_dir():
            return given / name
    raise SwebenchError(
        f"{instance.instance_id}: {given} has none of the folders {', '.join(names)}"
    )


def _git(*arguments: str) -> None:
    command = ["git", "-c", "safe.directory=*", *arguments]
    # of ours only: the GIT_DIR that git gives its hooks would have another repository reset
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    try:
        done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise SwebenchError("git is not installed, and instances are git repositories") from error
    if done.returncode:
        said = " ".join(done.stderr.split())[-_SHOWN_CHARS:]
        raise SwebenchError(f"git {' '.join(arguments[-3:])}: {said or done.returncode}")
