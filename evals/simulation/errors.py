"""What can be wrong with a simulation that was asked for."""

from __future__ import annotations

from agentkv.errors import AgentKVError


class SimulationError(AgentKVError, ValueError):
    """A machine, model or policy that cannot be simulated; the text says what is allowed."""


class StuckError(AgentKVError):
    """Requests wait and nothing that could ever happen would let them run."""
