"""Counters, Prometheus series and the event log of the policy's decisions."""

from __future__ import annotations

from dataclasses import dataclass

from .counters import Counters
from .event_log import EventLog


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Where the engine process counts and logs."""

    counters: Counters
    events: EventLog
