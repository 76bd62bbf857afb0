"""Plays instances at once, each by the `process_instance` of mini-swe-agent's own batch.

`run` calls it. mini-swe-agent runs the agents, writes trajectories and `preds.json` and shows the
progress. Added here are an end on Ctrl-C or with the server, and a row per instance.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from minisweagent.exceptions import UserInterruption
from minisweagent.run.benchmarks import swebench
from minisweagent.run.benchmarks.utils.batch_progress import RunBatchProgressManager
from rich.live import Live

from agentkv.agents.mini_swe.batch import AgentKVProgressAgent, substitute

from ..rows import RowFile
from .environments import start_environment
from .folder import ERROR_PREFIX, PREDICTIONS_FILE, ROWS_FILE, read_object
from .instances import Instance

CHECK_SERVER_EVERY_S = 5.0
_STOPPED = "Stopped"
_SHOWN_CHARS = 1000


class BatchAgent(AgentKVProgressAgent):
    """Our agent, which ends before its next call once the batch is stopped."""

    def query(self) -> dict[str, Any]:
        if self.progress_manager.stopped_because is not None:
            extra = {"exit_status": _STOPPED, "submission": ""}
            raise UserInterruption({"role": "exit", "content": _STOPPED, "extra": extra})
        return super().query()


class Batch(RunBatchProgressManager):
    """mini-swe-agent's progress manager, which also stops the batch and writes the rows.

    config: mini-swe-agent's configuration, with the model's server in it.
    clock: seconds since the run first began.
    server_gone: returns why the server no longer answers, or None.
    """

    def __init__(
        self,
        instances: Sequence[Instance],
        folder: Path,
        config: Mapping[str, Any],
        environment: str,
        *,
        clock: Callable[[], float],
        server_gone: Callable[[], str | None],
    ) -> None:
        super().__init__(len(instances))
        self.stopped_because: str | None = None
        self._waiting = iter(instances)
        self._folder = folder
        self._config = config
        self._start_environment = partial(start_environment, environment, folder)
        self._clock = clock
        self._server_gone = server_gone
        self._errors: dict[str, Exception] = {}
        self._row_lock = threading.Lock()

    def play(self, num_workers: int) -> None:
        """Block until all instances ended, or the batch is stopped and what ran has ended.

        A first Ctrl-C lets each agent finish its step, a second one abandons them.
        """
        substitute(ProgressTrackingAgent=BatchAgent, get_sb_environment=self._environment)
        ended: list[int] = []
        all_ended = threading.Event()  # a join that Ctrl-C breaks would take its thread for ended

        def work() -> None:
            try:
                self._work()
            finally:
                ended.append(threading.get_ident())
                if len(ended) == num_workers:
                    all_ended.set()

        # daemons: an agent that waits for a dead server must not keep the process alive
        for _ in range(num_workers):
            threading.Thread(target=work, daemon=True).start()
        with Live(self.render_group):
            is_over = False
            while not is_over:
                try:
                    is_over = all_ended.wait(CHECK_SERVER_EVERY_S)
                    self._check_server()
                except KeyboardInterrupt:
                    if self.stopped_because:
                        break
                    self.stop("interrupted")
                    print("stopping: agents end with their step; Ctrl-C again abandons them")

    def stop(self, reason: str) -> None:
        """Start no more instances, and end agents before their next call; keep the first reason."""
        self.stopped_because = self.stopped_because or reason

    def _check_server(self) -> None:
        if self.stopped_because is None and (reason := self._server_gone()) is not None:
            self.stop(reason)

    def _work(self) -> None:
        """Play what waits, one after the other; all threads draw from the same iterator."""
        for instance in self._waiting:
            if self.stopped_because is not None:
                break
            try:
                self._play(instance)
            except Exception as error:  # not of the instance's own making: a full disk, settings
                self.stop(f"an instance could not be kept: {error}")

    def _play(self, instance: Instance) -> None:
        name, start_s = instance["instance_id"], self._clock()
        swebench.process_instance(instance, self._folder, self._config, self)
        info = read_object(self._folder / name / f"{name}.traj.json").get("info", {})
        failed = self._errors.pop(name, None)
        status = type(failed).__name__ if failed else info.get("exit_status")
        error = str(failed) if failed else info.get("exception_str")
        if error is not None:
            self._check_server()
        if status in (None, _STOPPED) or (error is not None and self.stopped_because):
            # cut short by the end of the batch or of its server: no result
            swebench.remove_from_preds_file(self._folder / PREDICTIONS_FILE, name)
            return
        turns = info.get("agentkv", {}).get("turns", [])
        row = {
            "instance_id": name,
            "job_id": f"{name}.{self._config['model']['agentkv_run_id']}",
            "start_s": start_s,
            "end_s": self._clock(),
            "exit_status": status if error is None else f"{ERROR_PREFIX}{status}",
            "error": None if error is None else error[:_SHOWN_CHARS] or status,
            "num_turns": len(turns),
            "turns": turns,
        }
        with self._row_lock, RowFile(self._folder / ROWS_FILE, append=True) as rows:
            rows.add(row)

    def _environment(self, config: Mapping[str, Any], instance: Instance) -> Any:
        """Start an environment; mini-swe-agent's batch would keep no reason why it failed."""
        try:
            return self._start_environment(config, instance)
        except Exception as error:
            self._errors[instance["instance_id"]] = error
            raise
