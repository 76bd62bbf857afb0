"""Where an agent's commands run: a container, a bubblewrap sandbox or, if allowed, this machine.

`batch` starts one per instance through mini-swe-agent's `get_sb_environment`; `harness` grades in
sandboxes from here. Knows nothing about agents, models or servers.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minisweagent.environments.extra.bubblewrap import BubblewrapEnvironment
from minisweagent.run.benchmarks.swebench import get_sb_environment
from pydantic import BaseModel, Field

from agentkv.agents.sandbox import CLEAN_ENVIRONMENT, Sandbox, find_bubblewrap

from .instances import CONTAINERS, SUITE, SUITE_FILE, Instance, SwebenchError, load_instances

TESTBED = "/testbed"
"""Where SWE-bench's images have the repository; prompts and eval scripts name this path."""
_PULL_TIMEOUT_S = 1800  # mini-swe-agent gives an image of several gigabytes two minutes
_OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024  # a patch is printed, and must arrive whole
_MAX_FILE_KIB = 1024 * 1024  # a runaway `yes > file` must not fill the disk
_SHOWN_CHARS = 500


@dataclass(frozen=True, slots=True)
class EnvironmentPlan:
    """What the environments of a run share; `clones` is the folder of those under way."""

    kind: str
    repositories: Mapping[str, Path]
    clones: Path

    def start(self, instance: Instance, config: Mapping[str, Any], stack: ExitStack) -> Any:
        """Start the environment of one instance, and register its clean-up with `stack`.

        `config` is mini-swe-agent's configuration. Takes as long as pulling the image. Raises
        SwebenchError with the container program's message if there is no environment.
        """
        ours: dict[str, Any] = {"environment_class": "docker", "executable": self.kind}
        if self.kind not in CONTAINERS:
            repository = self.repositories[instance.instance_id]
            sandbox = stack.enter_context(fresh_sandbox(instance, repository, self.clones))
            ours = {"environment_class": "local", "cwd": str(sandbox.workspace)}
            if self.kind == "bubblewrap":
                name = f"{SandboxEnvironment.__module__}.{SandboxEnvironment.__name__}"
                ours = {"environment_class": name, "sandbox": sandbox}
        given = {"pull_timeout": _PULL_TIMEOUT_S, **config.get("environment", {}), **ours}
        row = {**instance.raw, "image_name": instance.image}
        try:
            environment = get_sb_environment({**config, "environment": given}, row)
        except subprocess.CalledProcessError as error:
            raise SwebenchError(
                f"{instance.image}: no container ({error.cmd[0]} ended with status "
                f"{error.returncode}): {_shown(error.stderr or error.stdout or '')}"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise SwebenchError(
                f"{instance.image}: no container after {error.timeout:g} s: pull it beforehand, or "
                "raise environment.pull_timeout with --config"
            ) from error
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


def find_repository(instance: Instance, *, given: Path | None, suite_folder: Path) -> Path:
    """Return the git repository of an instance.

    That of an instance of our own suite is made in `suite_folder`; others are `given/INSTANCE_ID`,
    `given/OWNER__NAME` or `given/NAME`. Raises SwebenchError if there is none.
    """
    name, repo = instance.instance_id, instance.repo
    if ours := [one for one in load_instances(SUITE) if one.instance_id == name]:
        return _suite_repository(ours[0], suite_folder)
    if given is None:
        raise SwebenchError(
            f"{name}: its repository, {repo}, lies in its container image: use --environment "
            "docker or podman, or name a folder of clones with --repositories"
        )
    names = (name, repo.replace("/", "__"), repo.rpartition("/")[2])
    found = [given / folder for folder in names if (given / folder).is_dir()]
    if not found:
        raise SwebenchError(f"{name}: {given} has none of the folders {', '.join(names)}")
    return found[0]


def prepare_suite(folder: Path) -> dict[str, Path]:
    """Make the suite's git repositories in `folder`, with the same commits on every machine.

    Returns the path of each instance's repository, which instances share. Safe if two processes
    do it at once. Raises SwebenchError without git, or if a commit is not the instance's.
    """
    return {one.instance_id: _suite_repository(one, folder) for one in load_instances(SUITE)}


def _suite_repository(instance: Instance, folder: Path) -> Path:
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
    return path


def _make_repository(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, ignore_cleanup_errors=True) as partial:
        made = Path(partial) / path.name
        # running the tests in place leaves caches behind
        caches = shutil.ignore_patterns("__pycache__", ".pytest_cache", "*.pyc")
        shutil.copytree(SUITE_FILE.with_name("repositories") / path.name, made, ignore=caches)
        for file in made.rglob("*"):  # an installer may have set other modes, which git would note
            file.chmod(0o755 if file.is_dir() else 0o644)
        date = "2025-01-01T00:00:00+0000"
        commit_all(made, author="agentkv", email="agentkv@localhost", date=date)
        try:
            made.rename(path)
        except OSError:
            if not path.exists():  # unless another process was quicker
                raise


@contextmanager
def fresh_sandbox(instance: Instance, repository: Path, folder: Path) -> Iterator[Sandbox]:
    """Clone the repository at the instance's commit, without history, for a sandbox at /testbed.

    Where no bubblewrap works the sandbox refuses its commands. The clone lies in `folder` and is
    deleted on exit. Raises SwebenchError if git fails, for want of the commit or of space.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # absolute: the sandbox binds it from another folder, and only Python 3.12 makes it so by itself
    own = Path(tempfile.mkdtemp(prefix=f"{instance.instance_id}.", dir=folder.absolute()))
    try:
        (own / "tmp").mkdir()
        with _git_errors(repository):
            clone_commit(repository, instance.base_commit, own / "testbed")
        yield Sandbox(
            workspace=own / "testbed",
            bubblewrap=find_bubblewrap(),
            inside=Path(TESTBED),
            scratch=own / "tmp",
            environment=CLEAN_ENVIRONMENT,
            output_limit_bytes=_OUTPUT_LIMIT_BYTES,
            max_file_kib=_MAX_FILE_KIB,
        )
    finally:
        shutil.rmtree(own, ignore_errors=True)


class SandboxConfig(BaseModel):
    """The settings that mini-swe-agent's configuration gives an environment, and our sandbox."""

    cwd: str = TESTBED
    env: dict[str, str] = {}
    timeout: int = 30
    # of this machine: neither for the prompt's templates nor for the trajectory
    sandbox: Sandbox = Field(exclude=True)


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
        config, command = self.config, str(action.get("command", ""))
        if (cwd or config.cwd) != TESTBED:
            command = f"cd {shlex.quote(cwd or config.cwd)} || exit\n{command}"
        limit_s = timeout or config.timeout
        environment = {**config.sandbox.environment, **config.env}
        sandbox = replace(config.sandbox, environment=environment, time_limit_s=limit_s)
        result = sandbox.run(command)
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


@contextmanager
def _git_errors(place: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise SwebenchError("git is not installed, and instances are git repositories") from error
    except subprocess.CalledProcessError as error:
        words = " ".join(error.cmd[-3:])
        raise SwebenchError(f"{place}: git {words}: {_shown(error.stderr)}") from error


def _shown(said: object) -> str:
    return " ".join(str(said).split())[-_SHOWN_CHARS:]


# The clone holds one commit: later ones in the repository would give the solution away.
_UPLOAD_PACK = "git -c uploadpack.allowAnySHA1InWant=true -c safe.directory=* upload-pack"


def clean_git(*arguments: str, identity: Mapping[str, str] | None = None) -> str:
    """Run git with an environment of our own; return its output without surrounding blanks.

    `identity` holds GIT_AUTHOR_* and GIT_COMMITTER_* variables, for commits. Raises
    CalledProcessError with git's words in `stderr`, and FileNotFoundError without git.
    """
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        **(identity or {}),
    }
    # safe.directory: reading a repository must not depend on who owns its folder
    command = ["git", "-c", "safe.directory=*", *arguments]
    done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    return done.stdout.strip()


def commit_all(folder: Path, *, author: str, email: str, date: str | None = None) -> None:
    """Make `folder` a git repository with one commit of everything in it.

    The hash depends on the files, the author and `date` only; without a date it is the time now.
    """
    identity: dict[str, str] = {}
    for role in ("AUTHOR", "COMMITTER"):
        identity |= {f"GIT_{role}_NAME": author, f"GIT_{role}_EMAIL": email}
        identity |= {} if date is None else {f"GIT_{role}_DATE": date}
    git = ("-C", str(folder))
    clean_git(*git, "init", "--quiet", "--initial-branch=main")
    clean_git(*git, "add", "--all")
    clean_git(*git, "commit", "--quiet", "--allow-empty", "--message", "Start", identity=identity)


def clone_commit(repository: Path, commit: str, folder: Path) -> None:
    """Make `folder` a repository that holds one commit of `repository`, checked out."""
    clean_git("init", "--quiet", "--initial-branch=main", str(folder))
    source = f"file://{repository.resolve()}"
    fetch = ("fetch", "--quiet", "--depth=1", f"--upload-pack={_UPLOAD_PACK}", source, commit)
    clean_git("-C", str(folder), *fetch)
    clean_git("-C", str(folder), "reset", "--quiet", "--hard", "FETCH_HEAD")
