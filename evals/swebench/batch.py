"""Plays instances at once, each by the `process_instance` of mini-swe-agent's own batch.

`run` calls it. mini-swe-agent writes trajectories and `preds.json` and shows the progress. Added
here are starts at given times, the environment's clean-up, an end on Ctrl-C or with the server,
and a row of times per instance. Knows nothing about policies.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

from minisweagent.exceptions import UserInterruption
from minisweagent.run.benchmarks import swebench
from minisweagent.run.benchmarks.utils.batch_progress import RunBatchProgressManager
from rich.console import Console
from rich.live import Live

from agentkv.agents.mini_swe.batch import AgentKVProgressAgent, substitute

from .environments import EnvironmentPlan
from .folder import ERROR_PREFIX, PREDICTIONS_FILE, RunFolder
from .instances import Instance

TICK_S = 0.25
CHECK_SERVER_EVERY_S = 5.0
GRACE_S = 10.0
"""Seconds for agents to notice that the server is gone; their retries would take minutes."""
_STOPPED = "Stopped"
_SHOWN_CHARS = 1000


@dataclass(slots=True)
class Playing:
    """An instance under way; `stack` cleans up its environment, also from another thread."""

    instance: Instance
    job_id: str
    start_s: float
    stack: ExitStack = field(default_factory=ExitStack)
    agent: Any = None
    error: Exception | None = None
    exit_status: str | None = None

    def row(self, end_s: float) -> dict[str, Any]:
        """Return the instance's line in the run's file."""
        error, turns = self.error, [] if self.agent is None else self.agent.turn_rows
        return {
            "instance_id": self.instance.instance_id,
            "job_id": self.job_id,
            "start_s": self.start_s,
            "end_s": end_s,
            "exit_status": f"{ERROR_PREFIX}{type(error).__name__}" if error else self.exit_status,
            "error": None if error is None else str(error)[:_SHOWN_CHARS] or repr(error),
            "num_turns": len(turns),
            "turns": turns,
        }


class BatchAgent(AgentKVProgressAgent):
    """Our agent, which ends between its reply and its command once the batch is stopped."""

    def run(self, task: str = "", **kwargs: Any) -> dict[str, Any]:
        playing = self.progress_manager.playing[self.instance_id]
        playing.agent = self
        try:
            return super().run(task, **kwargs)
        except Exception as error:
            playing.error = error  # mini-swe-agent's batch keeps its name only
            raise

    def query(self) -> dict[str, Any]:
        self.progress_manager.end_if_stopped()
        return super().query()

    def execute_actions(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        self.progress_manager.end_if_stopped()
        observations: list[dict[str, Any]] = super().execute_actions(message)
        return observations


class Batch(RunBatchProgressManager):
    """mini-swe-agent's progress manager, which also starts and stops the instances' threads.

    folder: receives the row of each instance that ended. A failed instance stops nothing, a row
        that cannot be written stops the batch.
    config: mini-swe-agent's configuration, with the model's server in it.
    clock: seconds since the run first began.
    server_gone: returns why the server no longer answers, or None.
    """

    def __init__(
        self,
        instances: Sequence[Instance],
        folder: RunFolder,
        config: Mapping[str, Any],
        environments: EnvironmentPlan,
        *,
        clock: Callable[[], float],
        server_gone: Callable[[], str | None],
    ) -> None:
        super().__init__(len(instances))
        self.playing: dict[str, Playing] = {}
        self.stopped_because: str | None = None
        self._instances = instances
        self._folder = folder
        self._config = config
        self._environments = environments
        self._clock = clock
        self._server_gone = server_gone
        self._changed = threading.Event()
        self._is_terminal = sys.stderr.isatty()
        substitute(ProgressTrackingAgent=BatchAgent, get_sb_environment=self._start_environment)

    def play(
        self, suffix: str, *, num_workers: int | None, starts_s: Sequence[float] | None = None
    ) -> None:
        """Block until all instances ended, or the batch is stopped and what ran has ended.

        `suffix` makes an instance's id the id of its job. `starts_s` are the instances' start
        times from now on, however many are under way; None starts one whenever fewer than
        `num_workers` are. A first Ctrl-C lets each agent finish its step, a second one abandons
        them.
        """
        waiting = deque(zip(starts_s or [0.0] * len(self._instances), self._instances, strict=True))
        limit = num_workers or len(waiting)
        began_s = checked_s = time.monotonic()
        deadline_s = math.inf
        shown = Live(self.render_group, console=Console(stderr=True), refresh_per_second=4)
        with shown if self._is_terminal else nullcontext():
            while waiting or self.playing:
                try:
                    now_s = time.monotonic()
                    while waiting and len(self.playing) < limit and not self.stopped_because:
                        if waiting[0][0] > now_s - began_s:
                            break
                        self._start(waiting.popleft()[1], suffix)
                    if self.stopped_because:
                        waiting.clear()
                    self._changed.wait(TICK_S)
                    self._changed.clear()
                    if now_s > deadline_s:
                        break
                    if now_s - checked_s > CHECK_SERVER_EVERY_S and deadline_s == math.inf:
                        checked_s = now_s
                        if (reason := self._server_gone()) is not None:
                            self.stop(reason)
                            deadline_s = now_s + GRACE_S
                except KeyboardInterrupt:
                    if self.stopped_because:
                        break
                    self.stop("interrupted")
                    _tell("stopping: agents end with their step; Ctrl-C again abandons them")
        for abandoned in list(self.playing.values()):
            abandoned.stack.close()  # a container would outlive us

    def stop(self, reason: str) -> None:
        """Start no more instances, and end agents before their next step; keep the first reason."""
        self.stopped_because = self.stopped_because or reason

    def end_if_stopped(self) -> None:
        """Raise mini-swe-agent's UserInterruption, which ends an agent's loop, if stopped."""
        if self.stopped_because is not None:
            extra = {"exit_status": _STOPPED, "submission": ""}
            raise UserInterruption({"role": "exit", "content": _STOPPED, "extra": extra})

    def summary(self) -> str:
        """Return the counts of instances that ended, by exit status, in one line."""
        ended = self._instances_by_exit_status.items()
        how = ", ".join(f"{len(names)} {status}" for status, names in ended)
        return f"{self.n_completed} of {len(self._instances)} over{f' ({how})' if how else ''}"

    def on_instance_start(self, instance_id: str) -> None:
        super().on_instance_start(instance_id)
        if not self._is_terminal:
            _tell(f"{instance_id}: begins")

    def on_instance_end(self, instance_id: str, exit_status: str | None) -> None:
        super().on_instance_end(instance_id, exit_status)
        self.playing[instance_id].exit_status = exit_status
        if not self._is_terminal:
            _tell(f"{instance_id}: {exit_status}; {self.summary()}")

    def _start(self, instance: Instance, suffix: str) -> None:
        name = instance.instance_id
        self.playing[name] = playing = Playing(instance, f"{name}{suffix}", self._clock())
        # daemon: an agent that waits for a dead server must not keep the process alive
        threading.Thread(target=self._play, args=(playing,), name=name, daemon=True).start()

    def _play(self, playing: Playing) -> None:
        name, out = playing.instance.instance_id, self._folder.path
        config = {**self._config}
        config["model"] = {**config["model"], "agentkv_job_id": playing.job_id}
        try:
            with playing.stack:
                swebench.process_instance(playing.instance.raw, out, config, self)
        except OSError as error:  # the trajectory or preds.json could not be written
            self.stop(f"an instance could not be kept: {error}")
        except Exception as error:
            playing.error = error
            self.on_uncaught_exception(name, error)
        try:
            if self._is_result(playing):
                self._folder.add(playing.row(self._clock()))
            else:
                swebench.remove_from_preds_file(out / PREDICTIONS_FILE, name)
        except Exception as error:  # not of the instance's own making
            self.stop(f"an instance could not be kept: {error}")
        finally:
            self.playing.pop(name, None)
            self._changed.set()

    def _is_result(self, playing: Playing) -> bool:
        """Return False if the end of the batch or of its server cut the instance short."""
        if playing.error is None:
            return playing.exit_status not in (None, _STOPPED)
        if self.stopped_because is None and (reason := self._server_gone()) is not None:
            self.stop(reason)
        return self.stopped_because is None

    def _start_environment(self, config: Mapping[str, Any], row: Mapping[str, Any]) -> Any:
        """Start an instance's environment, in place of mini-swe-agent's `get_sb_environment`."""
        playing = self.playing[row["instance_id"]]
        try:
            return self._environments.start(playing.instance, config, playing.stack)
        except Exception as error:
            playing.error = error
            raise


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
