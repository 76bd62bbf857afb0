"""Where an agent's commands run: a container, a bubblewrap sandbox, or, if it must be, here.

The classes are mini-swe-agent's; what is ours is which one, with which image or repository.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkv.agents.sandbox import find_bubblewrap

from .errors import SwebenchError
from .instances import Instance
from .worktree import Worktree, fresh_worktree

CONTAINERS = ("docker", "podman")
KINDS = (*CONTAINERS, "bubblewrap", "local")
PULL_TIMEOUT_S = 1800
"""mini-swe-agent gives an image of several gigabytes two minutes."""
_SANDBOX_CLASS = "agentkv.evals.swebench.sandbox_environment.SandboxEnvironment"
_SHOWN_CHARS = 500


@dataclass(frozen=True, slots=True)
class EnvironmentPlan:
    """What all instances of a run share; `worktrees` is a folder for what they throw away."""

    kind: str
    repositories: Mapping[str, Path]
    worktrees: Path
    bubblewrap: str | None = None


def missing(kind: str, *, is_unsafe_allowed: bool) -> str | None:
    """Why commands cannot run in this kind of environment here; None if they can."""
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


@contextmanager
def open_environment(
    plan: EnvironmentPlan, instance: Instance, config: Mapping[str, Any]
) -> Iterator[Any]:
    """A fresh environment for one instance, cleaned up afterwards; `config` is mini-swe-agent's.

    Takes as long as pulling the image. Raises SwebenchError if it cannot be had, with what the
    container program said.
    """
    if plan.kind in CONTAINERS:
        ours = {"environment_class": "docker", "executable": plan.kind}
        with _cleaned_up(lambda: _start(instance, config, ours)) as environment:
            yield environment
        return
    with fresh_worktree(
        instance, plan.repositories[instance.instance_id], plan.worktrees
    ) as worktree:
        ours = _sandboxed(plan, worktree) if plan.kind == "bubblewrap" else _unprotected(worktree)
        with _cleaned_up(lambda: _start(instance, config, ours)) as environment:
            yield environment


def _sandboxed(plan: EnvironmentPlan, worktree: Worktree) -> dict[str, Any]:
    return {
        "environment_class": _SANDBOX_CLASS,
        "program": plan.bubblewrap,
        "worktree": worktree.path,
        "scratch": worktree.scratch,
    }


def _unprotected(worktree: Worktree) -> dict[str, Any]:
    return {"environment_class": "local", "cwd": str(worktree.path)}


def _start(instance: Instance, config: Mapping[str, Any], ours: Mapping[str, Any]) -> Any:
    """mini-swe-agent's own start, with its start-up command if the configuration has one."""
    from minisweagent.run.benchmarks.swebench import get_sb_environment

    environment = {"pull_timeout": PULL_TIMEOUT_S, **config.get("environment", {}), **ours}
    row = {**instance.raw, "image_name": instance.image}
    try:
        return get_sb_environment({**config, "environment": environment}, row)
    except subprocess.CalledProcessError as error:
        said = " ".join(str(error.stderr or error.stdout or "").split())[-_SHOWN_CHARS:]
        raise SwebenchError(
            f"{instance.image}: no container ({environment.get('executable')} ended with status "
            f"{error.returncode}): {said}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SwebenchError(
            f"{instance.image}: no container after {error.timeout:g} s: pull it beforehand, or "
            "raise environment.pull_timeout with --config"
        ) from error


@contextmanager
def _cleaned_up(start: Callable[[], Any]) -> Iterator[Any]:
    environment = start()
    try:
        yield environment
    finally:
        if hasattr(environment, "cleanup"):  # mini-swe-agent's local environment has none
            environment.cleanup()
