"""What one instance is doing at this moment, for whoever looks on while its agent works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WAITING, STARTING, THINKING, RUNNING = "waiting", "starting", "thinking", "running"


class RunStoppedError(Exception):
    """The run is to end: raised in an agent's loop, between its reply and its command."""


@dataclass(slots=True)
class InstanceState:
    """Written by the instance's thread, read by others; `status` ends as the exit status."""

    instance_id: str
    status: str = WAITING
    command: str = ""
    started_s: float | None = None
    ended_s: float | None = None
    agent: Any = None
    environment: Any = None
    is_over: bool = False

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The turns so far, as the agent has them."""
        return [] if self.agent is None else list(self.agent.turn_rows)

    @property
    def is_active(self) -> bool:
        return self.status != WAITING and not self.is_over


class WatchedEnvironment:
    """An environment of mini-swe-agent that tells what it runs, and where a run can be stopped."""

    def __init__(
        self, environment: Any, state: InstanceState, is_stopped: Callable[[], bool]
    ) -> None:
        self._environment = environment
        self._state = state
        self._is_stopped = is_stopped

    @property
    def config(self) -> Any:
        return self._environment.config

    def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
        """Run one command; raises RunStoppedError before or after it once the run is to end."""
        self._stop_if_asked()
        self._state.command = str(action.get("command", ""))
        self._state.status = RUNNING
        try:
            output: dict[str, Any] = self._environment.execute(action, cwd)
        finally:
            self._state.status = THINKING
        self._stop_if_asked()
        return output

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._environment.get_template_vars(**kwargs)
        return found

    def serialize(self) -> dict[str, Any]:
        found: dict[str, Any] = self._environment.serialize()
        return found

    def _stop_if_asked(self) -> None:
        if self._is_stopped():
            raise RunStoppedError
