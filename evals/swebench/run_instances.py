"""Plays a run's instances, many at once, each in a thread of its own, and keeps each as it ends.

Ends when all are over, on SIGINT or SIGTERM, when the server is gone, or when nothing can be
written any more. One instance that fails stops nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .instance_run import AgentSetup, PlayedInstance, is_disk_full, play
from .instance_state import InstanceState
from .instances import Instance

TICK_S = 0.25
CHECK_SERVER_EVERY_S = 5.0
GRACE_S = 10.0
"""What agents get to notice that the server is gone; their retries would take minutes."""

Keep = Callable[[PlayedInstance], None]


class Display(Protocol):
    """Whoever looks on; called from one thread."""

    def tick(self) -> None: ...


@dataclass(slots=True)
class RunProgress:
    """The states of all instances, and why no further one starts, if that is so."""

    states: list[InstanceState]
    stopped_because: str | None = None
    abandoned: list[InstanceState] = field(default_factory=list)

    def stop(self, reason: str) -> None:
        """Start nothing more, and end what runs at its next turn; the first reason counts."""
        if self.stopped_because is None:
            self.stopped_because = reason

    @property
    def is_stopped(self) -> bool:
        return self.stopped_because is not None

    @property
    def num_active(self) -> int:
        return sum(state.is_active for state in self.states)


class InstanceRunner:
    """`starts_s` says when each instance starts, from now on; None: as soon as a worker is free."""

    def __init__(
        self,
        setup: AgentSetup,
        instances: Sequence[Instance],
        progress: RunProgress,
        *,
        job_id: Callable[[str], str],
        keep: Keep,
        server_gone: Callable[[], str | None],
        display: Display,
        num_workers: int | None,
        starts_s: Sequence[float] | None,
        check_server_every_s: float = CHECK_SERVER_EVERY_S,
        grace_s: float = GRACE_S,
    ) -> None:
        self._setup = setup
        self._waiting = list(zip(instances, progress.states, strict=True))
        self._progress = progress
        self._job_id = job_id
        self._keep = keep
        self._server_gone = server_gone
        self._display = display
        self._num_workers = num_workers
        self._starts_s = None if starts_s is None else list(starts_s)
        self._check_server_every_s = check_server_every_s
        self._grace_s = grace_s
        self._changed = threading.Event()

    def run(self) -> None:
        """Blocks until all instances are over, or the run is stopped and what ran has ended.

        A first Ctrl-C lets each agent finish its turn, a second one leaves them as they are.
        """
        began_s = checked_s = time.monotonic()
        deadline_s: float | None = None
        while self._waiting or self._progress.num_active:
            try:
                self._step(time.monotonic() - began_s)
                now_s = time.monotonic()
                if now_s - checked_s > self._check_server_every_s:
                    checked_s = now_s
                    if deadline_s is None and (reason := self._server_gone()) is not None:
                        self._progress.stop(reason)
                        deadline_s = now_s + self._grace_s
                if deadline_s is not None and now_s > deadline_s:
                    break
            except KeyboardInterrupt:
                if self._progress.is_stopped:
                    break
                self._progress.stop("interrupted")
                _say("stopping: agents end with their turn; Ctrl-C again leaves them at once")
        self._progress.abandoned = [one for one in self._progress.states if one.is_active]
        for state in self._progress.abandoned:
            _clean_up(state)

    def _step(self, elapsed_s: float) -> None:
        if self._progress.is_stopped:
            self._waiting.clear()
        # Asked in this order: an instance that stops the run does so before it is over.
        while self._waiting and self._is_due(elapsed_s) and not self._progress.is_stopped:
            self._start(*self._waiting.pop(0))
        self._display.tick()
        self._changed.wait(TICK_S)
        self._changed.clear()

    def _is_due(self, elapsed_s: float) -> bool:
        if self._starts_s is not None:
            return self._starts_s[len(self._starts_s) - len(self._waiting)] <= elapsed_s
        return self._progress.num_active < (self._num_workers or 1)

    def _start(self, instance: Instance, state: InstanceState) -> None:
        state.status = "starting"
        # daemon: an agent that waits for a dead server must not keep the process
        thread = threading.Thread(
            target=self._play, args=(instance, state), name=instance.instance_id, daemon=True
        )
        thread.start()

    def _play(self, instance: Instance, state: InstanceState) -> None:
        try:
            job_id = self._job_id(instance.instance_id)
            played = play(self._setup, instance, job_id, state)
            if played is not None and played.row["error"] is not None:
                played = self._unless_server_gone(played)
            if played is not None:
                self._keep(played)
            state.status = "stopped" if played is None else played.row["exit_status"]
        except Exception as error:  # what is not the instance's own doing ends the run
            state.status = "not kept"
            what = "the disk is full" if is_disk_full(error) else "an instance could not be kept"
            self._progress.stop(f"{what}: {error}")
        finally:
            state.is_over = True
            self._changed.set()

    def _unless_server_gone(self, played: PlayedInstance) -> PlayedInstance | None:
        """An error for want of a server says nothing about the instance."""
        reason = self._server_gone()
        if reason is None:
            return played
        self._progress.stop(reason)
        return None


def _clean_up(state: InstanceState) -> None:
    """A container outlives us otherwise."""
    cleanup = getattr(state.environment, "cleanup", None)
    if cleanup is not None:
        cleanup()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
