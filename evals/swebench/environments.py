"""Where an agent's commands run: a container, a bubblewrap sandbox or, if allowed, this machine.

`batch` starts one per instance through mini-swe-agent's `get_sb_environment`; `harness` grades in
worktrees from here. Knows nothing about agents, models or servers.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minisweagent.environments.extra.bubblewrap import BubblewrapEnvironment
from minisweagent.run.benchmarks.swebench import get_sb_environment
from pydantic import BaseModel, Field

from agentkv.agents.sandbox import Sandbox, find_bubblewrap
from agentkv.agents.workspace import clean_git, clone_commit, commit_all

from .instances import CONTAINERS, SUITE, SUITE_FILE, Instance, SwebenchError, load_instances

TESTBED = "/testbed"
"""Where SWE-bench's images have the repository; prompts and eval scripts name this path."""
_ENVIRONMENT = {
    "PATH": os.pathsep.join([f"{sys.prefix}/bin", "/usr/local/bin", "/usr/bin", "/bin"]),
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # plugins of our environment, not of the repository's
}
"""The whole environment of a sandboxed command: nothing is inherited."""
_PULL_TIMEOUT_S = 1800  # mini-swe-agent gives an image of several gigabytes two minutes
_OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024  # a patch is printed, and must arrive whole
_MAX_FILE_KIB = 1024 * 1024  # a runaway `yes > file` must not fill the disk
_SHOWN_CHARS = 500
_SUITE_REPOSITORIES = SUITE_FILE.with_name("repositories")
_SUITE_COMMIT = {
    "author": "agentkv",
    "email": "agentkv@localhost",
    "date": "2025-01-01T00:00:00+0000",
}


@dataclass(frozen=True, slots=True)
class Worktree:
    """`path` is the repository at the instance's commit, `scratch` an empty folder for `/tmp`."""

    path: Path
    scratch: Path


@dataclass(frozen=True, slots=True)
class EnvironmentPlan:
    """What the environments of a run share; `worktrees` is the folder of those under way."""

    kind: str
    repositories: Mapping[str, Path]
    worktrees: Path

    def start(self, instance: Instance, config: Mapping[str, Any], stack: ExitStack) -> Any:
        """Start the environment of one instance, and register its clean-up with `stack`.

        `config` is mini-swe-agent's configuration. Takes as long as pulling the image. Raises
        SwebenchError with the container program's message if there is no environment.
        """
        ours: dict[str, Any] = {"environment_class": "docker", "executable": self.kind}
        if self.kind not in CONTAINERS:
            repository = self.repositories[instance.instance_id]
            tree = stack.enter_context(fresh_worktree(instance, repository, self.worktrees))
            ours = {"environment_class": "local", "cwd": str(tree.path)}
            if self.kind == "bubblewrap":
                name = f"{SandboxEnvironment.__module__}.{SandboxEnvironment.__name__}"
                ours = {"environment_class": name, "worktree": tree.path, "scratch": tree.scratch}
                ours["program"] = find_bubblewrap()
        given = {"pull_timeout": _PULL_TIMEOUT_S, **config.get("environment", {}), **ours}
        environment = _started(instance, {**config, "environment": given})
        if hasattr(environment, "cleanup"):  # mini-swe-agent's local environment has none
            stack.callback(environment.cleanup)
        return environment


def missing(kind: str, *, is_unsafe_allowed: bool) -> str | None:
    """Return why commands cannot run in this kind of environment here; None if they can."""
    if kind in CONTAINERS and shutil.which(kind) is None:
        return f"{kind} is not installed: use --environment bubblewrap where that fits"
    if kind == "bubblewrap" and find_bubblewrap() is None:
        return "no bubblewrap works here: install it, or allow user namespaces"
    if kind == "local" and not is_unsafe_allowed:
        return (
            "local runs the model's commands on this machine, unprotected: add "
            "--i-know-this-is-unsafe if it may be destroyed, or use another --environment"
        )
    return None


def find_repositories(
    instances: Sequence[Instance], *, given: Path | None, suite_folder: Path
) -> dict[str, Path]:
    """Return the git repository of each instance, by instance id.

    Those of our own suite are made in `suite_folder`; others are `given/INSTANCE_ID`,
    `given/OWNER__NAME` or `given/NAME`. Raises SwebenchError for an instance that has none.
    """
    of_suite = {one.instance_id for one in load_instances(SUITE)}
    made = {}
    if any(one.instance_id in of_suite for one in instances):
        made = prepare_suite(suite_folder)
    return {
        one.instance_id: made.get(one.instance_id) or _given_repository(one, given)
        for one in instances
    }


def prepare_suite(folder: Path) -> dict[str, Path]:
    """Make the suite's git repositories in `folder`, with the same commits on every machine.

    Returns the path of each instance's repository, which instances share. Safe if two processes
    do it at once. Raises SwebenchError without git, or if a commit is not the instance's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths: dict[str, Path] = {}
    for instance in load_instances(SUITE):
        path = folder / instance.repo.partition("/")[2]
        with _git_errors(path):
            if not path.exists():
                _make_repository(path)
            commit = clean_git("-C", str(path), "rev-parse", "HEAD")
        if commit != instance.base_commit:
            raise SwebenchError(
                f"{path}: is at commit {commit}, {instance.instance_id} starts at "
                f"{instance.base_commit}: remove the folder; if that does not help, the suite's "
                "files were changed"
            )
        paths[instance.instance_id] = path
    return paths


@contextmanager
def fresh_worktree(instance: Instance, repository: Path, folder: Path) -> Iterator[Worktree]:
    """Clone the repository at the instance's commit, without history; deleted on exit.

    Raises SwebenchError if git fails, for want of the commit or of space.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # absolute: the sandbox binds it from another folder, and only Python 3.12 makes it so by itself
    own = Path(tempfile.mkdtemp(prefix=f"{instance.instance_id}.", dir=folder.absolute()))
    try:
        worktree = Worktree(own / "testbed", own / "tmp")
        worktree.scratch.mkdir()
        with _git_errors(repository):
            clone_commit(repository, instance.base_commit, worktree.path)
        yield worktree
    finally:
        shutil.rmtree(own, ignore_errors=True)


class SandboxConfig(BaseModel):
    """The settings that mini-swe-agent's configuration gives an environment, and three of ours."""

    cwd: str = TESTBED
    env: dict[str, str] = {}
    timeout: int = 30
    # of this machine: neither for the prompt's templates nor for the trajectory
    program: str = Field(exclude=True)
    worktree: Path = Field(exclude=True)
    scratch: Path = Field(exclude=True)


class SandboxEnvironment(BubblewrapEnvironment):
    """mini-swe-agent's bubblewrap environment, with the repository at /testbed and no network.

    The base class binds its folder under the host's name, shows all of /etc and keeps the network.
    Here a command sees programs, the running Python, the repository and a /tmp of its own.
    """

    def __init__(self, **kwargs: Any) -> None:
        self.config = SandboxConfig(**kwargs)

    def execute(
        self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None
    ) -> dict[str, Any]:
        """Run one command; raises mini-swe-agent's Submitted if it hands in the patch."""
        command, cwd = str(action.get("command", "")), cwd or self.config.cwd
        if cwd != TESTBED:
            command = f"cd {shlex.quote(cwd)} || exit\n{command}"
        limit_s = timeout or self.config.timeout
        result = sandbox_at_testbed(
            self.config.program,
            Worktree(self.config.worktree, self.config.scratch),
            env=self.config.env,
            time_limit_s=limit_s,
            output_limit_bytes=_OUTPUT_LIMIT_BYTES,
        ).run(command)
        output: dict[str, Any] = {"output": result.output, "returncode": result.returncode}
        output["exception_info"] = ""
        if result.timed_out:  # in the shape that mini-swe-agent's environments give it
            reason = f"the command ran longer than {limit_s} s and was ended"
            output["returncode"] = -1
            output["exception_info"] = f"An error occurred while executing the command: {reason}"
            output["extra"] = {"exception_type": "TimeoutError", "exception": reason}
        self._check_finished(output)
        return output

    def cleanup(self) -> None:
        """Do nothing: every command's sandbox ends with the command."""


def sandbox_at_testbed(
    bubblewrap: str, worktree: Worktree, *, env: Mapping[str, str] | None = None, **limits: Any
) -> Sandbox:
    """Return a sandbox that has the worktree at /testbed; `limits` are further fields of it."""
    return Sandbox(
        workspace=worktree.path,
        bubblewrap=bubblewrap,
        inside=Path(TESTBED),
        scratch=worktree.scratch,
        environment=_ENVIRONMENT | dict(env or {}),
        max_file_kib=_MAX_FILE_KIB,
        **limits,
    )


def _started(instance: Instance, config: Mapping[str, Any]) -> Any:
    """Start it as mini-swe-agent does, with the configuration's start-up command."""
    try:
        return get_sb_environment(config, {**instance.raw, "image_name": instance.image})
    except subprocess.CalledProcessError as error:
        said = " ".join(str(error.stderr or error.stdout or "").split())[-_SHOWN_CHARS:]
        raise SwebenchError(
            f"{instance.image}: no container ({error.cmd[0]} ended with status "
            f"{error.returncode}): {said}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SwebenchError(
            f"{instance.image}: no container after {error.timeout:g} s: pull it beforehand, or "
            "raise environment.pull_timeout with --config"
        ) from error


def _given_repository(instance: Instance, given: Path | None) -> Path:
    if given is None:
        raise SwebenchError(
            f"{instance.instance_id}: its repository, {instance.repo}, lies in its container "
            "image: use --environment docker or podman, or name a folder of clones with "
            "--repositories"
        )
    repo = instance.repo
    names = (instance.instance_id, repo.replace("/", "__"), repo.rpartition("/")[2])
    for name in names:
        if (given / name).is_dir():
            return given / name
    raise SwebenchError(
        f"{instance.instance_id}: {given} has none of the folders {', '.join(names)}"
    )


def _make_repository(path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent, ignore_cleanup_errors=True) as partial:
        made = Path(partial) / path.name
        # running the tests in place leaves caches behind
        caches = shutil.ignore_patterns("__pycache__", ".pytest_cache", "*.pyc")
        shutil.copytree(_SUITE_REPOSITORIES / path.name, made, ignore=caches)
        for file in made.rglob("*"):  # an installer may have set other modes, which git would note
            file.chmod(0o755 if file.is_dir() else 0o644)
        commit_all(made, **_SUITE_COMMIT)
        try:
            made.rename(path)
        except OSError:
            if not path.exists():  # unless another process was quicker
                raise


@contextmanager
def _git_errors(place: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise SwebenchError("git is not installed, and instances are git repositories") from error
    except subprocess.CalledProcessError as error:
        said = " ".join(str(error.stderr).split())[-_SHOWN_CHARS:]
        raise SwebenchError(f"{place}: git {' '.join(error.cmd[-3:])}: {said}") from error
