"""mini-swe-agent's own SWE-bench batch, each instance a job; `run` starts it in a process.

    python -m agentkv.evals.swebench.batch SCRATCH --output DIR --config FILE --workers N

SCRATCH holds the instances, and what the sandboxes of the suite need. Each trajectory has the job's
id and turns under `info.agentkv`. The batch ends, containers included, when standard input does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

from minisweagent.exceptions import FormatError
from minisweagent.run.benchmarks import swebench
from minisweagent.run.benchmarks.utils.common import ProgressTrackingAgent

import agentkv
from agentkv.client.job import Job

from .instances import SANDBOX, Instance, SwebenchError
from .suite import sandbox_settings

INSTANCES_FILE = "instances.json"
_PULL_TIMEOUT_S = 1800  # mini-swe-agent gives an image of several gigabytes two minutes
_get_environment = swebench.get_sb_environment  # which `main` replaces
_started: WeakSet[Any] = WeakSet()
"""Environments whose agents may be at work."""
_EPOCH_S = time.time() - time.monotonic()


def _now_s() -> float:
    """Return the time of day as of the batch's start, and the seconds since: it never steps."""
    return _EPOCH_S + time.monotonic()


class JobAgent(ProgressTrackingAgent):
    """mini-swe-agent's agent of a batch, whose run is a job; the client tags litellm's calls.

    run_id: ends the ids of jobs, so that a server takes none for one of an earlier run.
    """

    def __init__(self, *args: Any, run_id: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._job: Job[Any] | None = None
        self._turns: list[dict[str, Any]] = []
        job_id = f"{self.instance_id}.{run_id}"
        self._facts: dict[str, Any] = {"job_id": job_id, "turns": self._turns}

    def run(self, task: str = "", **kwargs: Any) -> dict[str, Any]:
        """Run the loop as one job, which the server frees when it ends."""
        self._facts["began_s"] = _now_s()
        with agentkv.session(job_id=self._facts["job_id"]) as self._job:
            if self.config.step_limit:
                self._job.limit_turns(self.config.step_limit)
            try:
                result: dict[str, Any] = super().run(task, **kwargs)
            finally:
                self._facts["ended_s"] = _now_s()
        return result

    def query(self) -> dict[str, Any]:
        """Make one call, and note its seconds and tokens; a malformed reply is a turn, too."""
        sent_s = _now_s()
        try:
            message: dict[str, Any] = super().query()
        except FormatError as error:
            self._note_turn(sent_s, error.messages[0])
            raise
        self._note_turn(sent_s, message)
        return message

    def execute_actions(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Run the commands of a reply as a tool of the job."""
        assert self._job is not None, "commands run inside of run()"
        commands = [action["command"] for action in message["extra"]["actions"]]
        tool = self._job.tool("\n".join(commands))
        try:
            with tool:
                messages: list[dict[str, Any]] = super().execute_actions(message)
        finally:  # a submission is raised
            self._turns[-1]["tool_s"] = tool.duration_s
        return messages

    def serialize(self, *extra_dicts: dict[str, Any]) -> dict[str, Any]:
        """Add the job to mini-swe-agent's trajectory."""
        found: dict[str, Any] = super().serialize({"info": {"agentkv": self._facts}}, *extra_dicts)
        return found

    def _note_turn(self, sent_s: float, message: dict[str, Any]) -> None:
        usage = message["extra"].get("response", {}).get("usage") or {}
        self._turns.append(
            {
                "turn": len(self._turns),
                "sent_s": sent_s,
                "first_token_s": None,
                "ended_s": _now_s(),
                "prompt_tokens": usage.get("prompt_tokens") or 0,
                "cached_tokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
                "output_tokens": usage.get("completion_tokens") or 0,
                "tool_s": 0.0,
            }
        )


def start_environment(
    scratch: Path, output: Path, config: dict[str, Any], instance: Instance
) -> Any:
    """Start mini-swe-agent's environment for one instance, by its configuration.

    Takes as long as pulling the image. Raises SwebenchError with the program's own words, which
    are kept in a trajectory: the batch only logs them.
    """
    settings = {"pull_timeout": _PULL_TIMEOUT_S, **config["environment"]}
    name, image = instance["instance_id"], instance["image_name"]
    try:
        if settings["environment_class"] == SANDBOX:
            settings |= sandbox_settings(instance, scratch)
        environment = _get_environment({**config, "environment": settings}, instance)
        _started.add(environment)
        return environment
    except Exception as error:
        words = getattr(error, "stderr", None) or ""  # of the program that makes containers
        said = f"{image}: {error} {' '.join(words.split())}"[:1000]
    info = {"exit_status": SwebenchError.__name__, "exception_str": said, "submission": ""}
    path = output / name / f"{name}.traj.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"info": {**info, "agentkv": {}}}))
    raise SwebenchError(said)


def _end_with_parent() -> None:
    """End this process, and its containers, once the other end of standard input is closed."""
    lifeline = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # nothing for the commands of the model

    def wait() -> None:
        lifeline.read()
        for environment in list(_started):
            environment.cleanup()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main(argv: list[str]) -> None:
    """Run the batch with our agent in the place of its own.

    Source: mini-swe-agent 2.4.6, minisweagent/run/benchmarks/swebench.py.
    """
    scratch, output = Path(argv[0]), Path(argv[argv.index("--output") + 1])
    instances = json.loads((scratch / INSTANCES_FILE).read_text())
    swebench.ProgressTrackingAgent = JobAgent
    swebench.get_sb_environment = partial(start_environment, scratch, output)
    # the batch loads its instances with this package, which takes seconds and writes a cache
    sys.modules["datasets"] = SimpleNamespace(load_dataset=lambda path, split: instances)  # type: ignore[assignment]
    _end_with_parent()
    swebench.app(["--redo-existing", *argv[1:]], standalone_mode=False)


if __name__ == "__main__":
    main(sys.argv[1:])
