"""Runs the same jobs on one server after the other: each policy in each repeat, A B C A B C.

Every run gets a server of its own, freshly started: vLLM has no route that empties the cache and
forgets what was learned.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentkv.errors import AgentKVError
from agentkv.server.process import ServerProcess

from .outcomes import RunOutcome
from .plans import Workload
from .run_files import RUN_FILE, TURNS_FILE, RunFilesError, read_runs
from .server_load import LoadOptions, load_server
from .server_policies import ServerPolicy


class CompareError(AgentKVError):
    """A comparison that broke off; the runs before it are on disk."""


@dataclass(frozen=True, slots=True)
class ComparePlan:
    """What is compared: `server_flags` are the same for every policy."""

    policies: tuple[ServerPolicy, ...]
    repeats: int
    workload: Workload
    described: Mapping[str, Any]
    model: str | None
    server_flags: tuple[str, ...]
    out: Path
    ready_timeout_s: float
    limit_s: float | None
    config: Mapping[str, Any] = field(default_factory=dict)

    def folder(self, policy: ServerPolicy, repeat: int) -> Path:
        return self.out / f"{policy.name.replace(':', '-')}-{repeat}"

    def runs(self) -> list[tuple[ServerPolicy, int]]:
        """Interleaved, so that a machine that slows down slows all policies alike."""
        return [(policy, repeat) for repeat in range(self.repeats) for policy in self.policies]


def check_folders(plan: ComparePlan, *, resume: bool, force: bool) -> None:
    """Raise RunFilesError if runs are there already, unless they may be used or overwritten."""
    for policy, repeat in plan.runs():
        folder = plan.folder(policy, repeat)
        if (folder / TURNS_FILE).exists() and not (resume or force):
            raise RunFilesError(
                f"{folder} holds a run: choose another --out, --resume to go on with what is "
                "there, or --force to overwrite it"
            )


def run_all(plan: ComparePlan, *, resume: bool) -> Iterator[RunOutcome]:
    """Each run as it ends; with `resume`, those that are complete on disk are read instead.

    Raises CompareError after the run that broke off, ServerStartError for a server that does not
    come up.
    """
    todo = plan.runs()
    for number, (policy, repeat) in enumerate(todo, start=1):
        label = f"[{number}/{len(todo)}] {policy.name}, repeat {repeat + 1} of {plan.repeats}"
        found = _complete_run(plan, policy, repeat) if resume else None
        if found is not None:
            _say(f"{label}: on disk already")
            yield found
            continue
        _say(f"{label}: starting its server")
        run, reason = _run(plan, policy, repeat)
        if run.jobs:
            yield run
        if reason is not None:
            raise CompareError(f"{label}: ended early: {reason}")


def _run(plan: ComparePlan, policy: ServerPolicy, repeat: int) -> tuple[RunOutcome, str | None]:
    folder = plan.folder(policy, repeat)
    folder.mkdir(parents=True, exist_ok=True)
    server = ServerProcess(
        plan.model,
        policy=policy.scheduling_policy,
        args=(*plan.server_flags, *policy.flags()),
        log_path=folder / "server.log",
        ready_timeout_s=plan.ready_timeout_s,
    )
    with server:
        options = LoadOptions(
            base_url=server.base_url,
            policy=policy.name,
            limit_s=plan.limit_s,
            out=folder,
            force=True,
            config=plan.config,
        )
        run, reason = load_server(plan.workload, plan.described, options, repeat=repeat)
        if reason is not None and not server.is_alive:
            reason = f"{reason}; the end of its log, {server.log_path}:\n{server.log_tail()}"
        return run, reason


def _complete_run(plan: ComparePlan, policy: ServerPolicy, repeat: int) -> RunOutcome | None:
    """The run on disk; None if there is none or it broke off.

    Raises RunFilesError if it was made of other jobs or with other server flags.
    """
    folder = plan.folder(policy, repeat)
    if not (folder / RUN_FILE).exists():
        return None
    run = read_runs([folder])[0]
    if run.metadata.get("stopped_because") is not None:
        return None
    for name, then, now in (
        ("workload", run.workload, plan.described),
        ("server_flags", run.metadata.get("config", {}).get("server_flags"), plan.server_flags),
    ):
        if _plain(then) != _plain(now):
            raise RunFilesError(
                f"{folder}: was made with another {name}: {then}, now {now}: choose another "
                "--out, or --force"
            )
    return run


def _plain(value: Any) -> Any:
    """As it comes back from a file."""
    return json.loads(json.dumps(value))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
