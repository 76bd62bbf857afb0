"""Plays instances at once, each by the `process_instance` of mini-swe-agent's own batch.

`run` calls it. The batch writes trajectories and `preds.json` and shows the progress. Added here
are starts at given times, the environment's clean-up, an end on Ctrl-C or with the server, and a
row of times per instance. Knows nothing about policies.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minisweagent.exceptions import UserInterruption
from minisweagent.run.benchmarks import swebench
from minisweagent.run.benchmarks.utils.batch_progress import RunBatchProgressManager

from agentkv.agents.mini_swe.batch import AgentKVProgressAgent, substitute

from .environments import EnvironmentPlan
from .folder import ERROR_PREFIX, PREDICTIONS_FILE
from .instances import Instance

TICK_S = 0.25
CHECK_SERVER_EVERY_S = 5.0
GRACE_S = 10.0
"""Seconds for agents to notice that the server is gone; their retries would take minutes."""
_STOPPED = "Stopped"
_DISK_FULL = ("No space left on device", "Disk quota exceeded")
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


class BatchProgress(RunBatchProgressManager):
    """mini-swe-agent's display on a terminal, and a line per instance elsewhere; on stderr.

    Also holds what the instances' agents share: who plays, and whether the batch is stopped.
    """

    def __init__(self, num_instances: int, label: str = "") -> None:
        super().__init__(num_instances)
        self.playing: dict[str, Playing] = {}
        self.stopped_because: str | None = None
        self._label = label
        self._num_instances = num_instances
        self._is_terminal = sys.stderr.isatty()

    def stop(self, reason: str) -> None:
        """Start no more instances, and end agents before their next step; keep the first reason."""
        if self.stopped_because is None:
            self.stopped_because = reason

    def end_if_stopped(self) -> None:
        """Raise mini-swe-agent's UserInterruption, which ends an agent's loop, if stopped."""
        if self.stopped_because is not None:
            extra = {"exit_status": _STOPPED, "submission": ""}
            raise UserInterruption({"role": "exit", "content": _STOPPED, "extra": extra})

    def on_instance_start(self, instance_id: str) -> None:
        super().on_instance_start(instance_id)
        self._say(f"{instance_id}: begins")

    def on_instance_end(self, instance_id: str, exit_status: str | None) -> None:
        super().on_instance_end(instance_id, exit_status)
        self.playing[instance_id].exit_status = exit_status
        self._say(f"{instance_id}: {exit_status}; {self.summary()}")

    def summary(self) -> str:
        """Return the counts of instances that ended, by exit status, in one line."""
        ended = self._instances_by_exit_status
        how = ", ".join(f"{len(names)} {status}" for status, names in ended.items())
        return f"{self.n_completed} of {self._num_instances} over{f' ({how})' if how else ''}"

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Keep the display on the terminal inside the block."""
        if not self._is_terminal:
            yield
            return
        from rich.console import Console
        from rich.live import Live

        with Live(self.render_group, console=Console(stderr=True), refresh_per_second=4):
            yield

    def _say(self, text: str) -> None:
        if not self._is_terminal:
            print(f"{self._label}: {text}", file=sys.stderr, flush=True)


class BatchAgent(AgentKVProgressAgent):
    """Our agent, which ends between its reply and its command once the batch is stopped."""

    def run(self, task: str = "", **kwargs: Any) -> dict[str, Any]:
        playing = self.progress_manager.playing[self.instance_id]
        playing.agent = self
        try:
            return super().run(task, **kwargs)
        except Exception as error:
            playing.error = error  # the batch keeps the exception's name only
            raise

    def query(self) -> dict[str, Any]:
        self.progress_manager.end_if_stopped()
        return super().query()

    def execute_actions(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        self.progress_manager.end_if_stopped()
        observations: list[dict[str, Any]] = super().execute_actions(message)
        return observations


class Batch:
    """Plays a run's instances; a failed instance stops nothing.

    config: mini-swe-agent's, with the model's server in it.
    keep: receives the row of each instance that ended, from the instance's thread; an exception
        stops the batch.
    server_gone: returns why the server no longer answers, or None.
    """

    def __init__(
        self,
        out: Path,
        config: Mapping[str, Any],
        environments: EnvironmentPlan,
        progress: BatchProgress,
        *,
        clock: Callable[[], float],
        keep: Callable[[dict[str, Any]], None],
        server_gone: Callable[[], str | None],
    ) -> None:
        self._out = out
        self._config = config
        self._environments = environments
        self._progress = progress
        self._clock = clock
        self._keep = keep
        self._server_gone = server_gone
        self._changed = threading.Event()
        substitute(ProgressTrackingAgent=BatchAgent, get_sb_environment=self._start_environment)

    def play(
        self,
        instances: Sequence[Instance],
        job_id: Callable[[str], str],
        *,
        num_workers: int | None,
        starts_s: Sequence[float] | None = None,
    ) -> None:
        """Block until all instances ended, or the batch is stopped and what ran has ended.

        `starts_s` are the instances' start times from now on, whatever number is under way; None
        starts one whenever fewer than `num_workers` are. A first Ctrl-C lets each agent finish its
        step, a second one abandons them.
        """
        waiting = deque(zip(instances, starts_s or [0.0] * len(instances), strict=True))
        limit = len(instances) if num_workers is None else num_workers
        began_s = checked_s = time.monotonic()
        deadline_s = float("inf")
        progress = self._progress
        with progress.shown():
            while waiting or progress.playing:
                try:
                    now_s = time.monotonic()
                    # asked again after each start: an instance may stop the batch at once
                    while (
                        waiting and len(progress.playing) < limit and not progress.stopped_because
                    ):
                        if waiting[0][1] > now_s - began_s:
                            break
                        self._start(waiting.popleft()[0], job_id)
                    if progress.stopped_because:
                        waiting.clear()
                    self._changed.wait(TICK_S)
                    self._changed.clear()
                    if now_s - checked_s > CHECK_SERVER_EVERY_S:
                        checked_s = now_s
                        if deadline_s == float("inf") and (reason := self._server_gone()):
                            progress.stop(reason)
                            deadline_s = now_s + GRACE_S
                    if now_s > deadline_s:
                        break
                except KeyboardInterrupt:
                    if progress.stopped_because:
                        break
                    progress.stop("interrupted")
                    print(
                        "stopping: agents end with their step; Ctrl-C again abandons them",
                        file=sys.stderr,
                        flush=True,
                    )
        for abandoned in list(progress.playing.values()):
            abandoned.stack.close()  # a container would outlive us

    def _start(self, instance: Instance, job_id: Callable[[str], str]) -> None:
        name = instance.instance_id
        playing = Playing(instance, job_id(name), self._clock())
        self._progress.playing[name] = playing
        # daemon: an agent that waits for a dead server must not keep the process alive
        threading.Thread(target=self._play, args=(playing,), name=name, daemon=True).start()

    def _play(self, playing: Playing) -> None:
        name = playing.instance.instance_id
        config = {
            **self._config,
            "model": {**self._config["model"], "agentkv_job_id": playing.job_id},
        }
        row = {
            **playing.instance.raw,
            "instance_id": name,
            "problem_statement": playing.instance.problem_statement,
        }
        try:
            try:
                with playing.stack:
                    swebench.process_instance(row, self._out, config, self._progress)
            except OSError:  # the trajectory or preds.json could not be written
                raise
            except Exception as error:
                playing.error = error
                self._progress.on_uncaught_exception(name, error)
            if is_disk_full(playing.error):  # says nothing about the instance
                raise OSError(f"{name}: {playing.error}")
            if self._is_result(playing):
                self._keep(_row(playing, self._clock()))
            else:
                swebench.remove_from_preds_file(self._out / PREDICTIONS_FILE, name)
        except Exception as error:  # not of the instance's own making
            what = "the disk is full" if is_disk_full(error) else "an instance could not be kept"
            self._progress.stop(f"{what}: {error}")
        finally:
            self._progress.playing.pop(name, None)
            self._changed.set()

    def _is_result(self, playing: Playing) -> bool:
        """False if the end of the batch or of its server cut the instance short."""
        if playing.error is None:
            return playing.exit_status != _STOPPED
        if self._progress.stopped_because is None and (reason := self._server_gone()):
            self._progress.stop(reason)
        return self._progress.stopped_because is None

    def _start_environment(self, config: Mapping[str, Any], row: Mapping[str, Any]) -> Any:
        """Start an instance's environment, in place of the batch's `get_sb_environment`."""
        playing = self._progress.playing[row["instance_id"]]
        try:
            return self._environments.start(playing.instance, config, playing.stack)
        except Exception as error:
            playing.error = error
            raise


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Turn SIGTERM into KeyboardInterrupt, so that containers and servers do not outlive us.

    Does nothing outside the main thread, which alone receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether this error or one of its causes is for want of disk space.

    Programs such as git report it in words only.
    """
    while error is not None:
        if any(words in str(error) for words in _DISK_FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def _row(playing: Playing, end_s: float) -> dict[str, Any]:
    error = playing.error
    turns = [] if playing.agent is None else playing.agent.turn_rows
    return {
        "instance_id": playing.instance.instance_id,
        "job_id": playing.job_id,
        "start_s": playing.start_s,
        "end_s": end_s,
        "exit_status": f"{ERROR_PREFIX}{type(error).__name__}" if error else playing.exit_status,
        "error": None if error is None else str(error)[:_SHOWN_CHARS] or repr(error),
        "num_turns": len(turns),
        "turns": turns,
    }
