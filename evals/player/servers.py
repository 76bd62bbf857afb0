"""Plays the same jobs on servers: on one that runs, or under each policy on servers of its own.

Repeats are interleaved (A B C A B C), so that a machine that slows down slows all policies alike,
and each run of its own servers gets a fresh one with the same flags.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from agentkv.errors import InputError, RunError
from agentkv.policies.names import STOCK_POLICIES, PolicyChoice, folder_name
from agentkv.server.process import ServerProcess

from ..outcomes import RunOutcome
from ..rows import RUN_FILE, TURNS_FILE, read_runs, require_free
from ..workload.plans import Workload
from .run import load_server

BASELINE = "fcfs"
READY_TIMEOUT_S = 600.0
_OF_SERVERS = ("model", "server_flags", "dram_gib")


@dataclass(frozen=True)
class BenchPlan:
    """The runs of a measurement.

    url: the running server to play on; without it each run starts a server of `model` with
    `server_flags`, which are the same for every policy. `config` has the flags that stand on rows.
    `dram_gib` is the size of the tier of policies that have one.
    """

    policies: tuple[PolicyChoice, ...]
    repeats: int
    workload: Workload
    described: Mapping[str, Any]
    config: Mapping[str, Any]
    out: Path | None = None
    force: bool = False
    url: str | None = None
    api_key: str | None = None
    model: str | None = None
    server_flags: tuple[str, ...] = ()
    dram_gib: float = 1.0

    @property
    def baseline(self) -> str:
        names = [policy.name for policy in self.policies]
        return BASELINE if BASELINE in names or not names else names[0]

    def runs(self) -> list[tuple[PolicyChoice | None, int]]:
        """Policy and repeat of each run; None for the policy that the running server has."""
        policies = self.policies or (None,)
        return [(policy, repeat) for repeat in range(self.repeats) for policy in policies]

    def folder(self, policy: PolicyChoice | None, repeat: int) -> Path | None:
        name = "server" if policy is None else folder_name(policy.name)
        return None if self.out is None else self.out / f"{name}-{repeat}"

    def args(self, policy: PolicyChoice) -> tuple[str, ...]:
        """Flags of a policy's servers."""
        tier = ("--kv-tier-gib", f"{self.dram_gib:g}") if policy.has_offload else ()
        return (*self.server_flags, *policy.flags(), *tier)

    def check_folders(self, *, resume: bool) -> None:
        """Make the folder for all; raise InputError if runs exist already, unless they may be used
        or overwritten, or OSError if there can be no folder."""
        for policy, repeat in self.runs():
            if (folder := self.folder(policy, repeat)) is not None:
                require_free(folder / TURNS_FILE, force=resume or self.force)
        if self.url is None and self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)

    def play_all(self, *, resume: bool = False) -> Iterator[RunOutcome]:
        """Each run as it ends; with `resume`, those that are complete on disk are read instead.

        Raises RunError after the run that broke off, ServerStartError for a server that does not
        come up.
        """
        todo = self.runs()
        for number, (policy, repeat) in enumerate(todo, start=1):
            name = "the server" if policy is None else policy.name
            label = f"[{number}/{len(todo)}] {name}, repeat {repeat + 1} of {self.repeats}"
            if resume and (found := self.run_on_disk(policy, repeat)) is not None:
                _say(f"{label}: on disk already")
                yield found
                continue
            run, reason = self.play(policy, repeat, label)
            if run.jobs:
                yield run
            if reason is not None:
                raise RunError(f"{label}: ended early: {reason}")

    def play(
        self, policy: PolicyChoice | None, repeat: int, label: str
    ) -> tuple[RunOutcome, str | None]:
        """Make one run; returns the reason, too, if it ended early."""
        folder = self.folder(policy, repeat)
        load = partial(
            load_server,
            self.workload,
            self.described,
            policy=policy,
            api_key=self.api_key,
            out=folder,
            config=self.config,
            repeat=repeat,
        )
        if self.url is not None:
            return load(self.url, model=self.model)
        assert policy is not None, "a server of one's own has a policy"
        assert folder is not None, "a server of one's own has a folder for its log"
        starting = start_server(self.model, policy, self.args(policy), folder)
        _say(f"{label}: its server starts, log in {starting.log_path}")
        with starting as server:
            if policy.scheduling_policy not in STOCK_POLICIES:
                _say(f"watch it at {server.base_url}/agentkv/ui")
            run, reason = load(server.base_url)
            if not server.is_alive:
                reason = f"{reason or 'the server ended'}; the end of its log, "
                reason += f"{server.log_path}:\n{server.log_tail()}"
            return run, reason

    def run_on_disk(self, policy: PolicyChoice | None, repeat: int) -> RunOutcome | None:
        """The whole run on disk; None without one. Raises InputError for one of other jobs or
        of servers with other flags."""
        folder = self.folder(policy, repeat)
        if folder is None or not (folder / RUN_FILE).exists():
            return None
        (run,) = read_runs([folder])
        if run.metadata.get("stopped_because") is not None:
            return None
        config = run.metadata.get("config", {})
        then = run.workload, *map(config.get, _OF_SERVERS)
        now = self.described, *map(self.config.get, _OF_SERVERS)
        if json.dumps(then, sort_keys=True) != json.dumps(now, sort_keys=True):
            raise InputError(f"{folder} is of other jobs or servers: choose another --out")
        return run


def start_server(
    model: str | None,
    policy: PolicyChoice,
    args: Sequence[str],
    folder: Path,
    *,
    ready_timeout_s: float = READY_TIMEOUT_S,
) -> ServerProcess:
    """A fresh server, to be entered; its log is `server.log` of the folder.

    vLLM has no route that empties the cache and forgets what it learned.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return ServerProcess(
        model,
        policy=policy.scheduling_policy,
        args=args,
        log_path=folder / "server.log",
        ready_timeout_s=ready_timeout_s,
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
