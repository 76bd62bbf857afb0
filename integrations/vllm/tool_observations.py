"""How long a job's tools take, from whatever source says it best: one source for each turn.

The client's own report comes first, then the duration piggy-backed on the next turn, then the gap
between a turn's end and the next one's arrival, which holds the agent's own time too.
"""

from __future__ import annotations

from agentkv.durations.ttl import ToolDurations
from agentkv.protocol import Tags, ToolEvent

from .continuum import tool_name
from .counters import Counters
from .forecaster import Forecaster
from .jobs import Job

MIN_BOUND_S = 1.0
"""A tool cut short sooner than this says nothing about how long it takes."""


class ToolObservations:
    """Feeds durations to Continuum's distributions, by tool, and the predictor, by command."""

    def __init__(
        self, durations: ToolDurations, forecaster: Forecaster | None, counters: Counters
    ) -> None:
        self._durations = durations
        self._forecaster = forecaster
        self._counters = counters

    def from_client(self, job: Job, event: ToolEvent) -> None:
        """The client measured a tool and says so; a bare tool name leaves the command known."""
        if event.duration_s is not None:
            known = job.decision.command if job.decision is not None else None
            text = event.command or event.tool or ""
            command = event.command or known or event.tool
            self._observe(job, tool_name(text), command, event.duration_s, "client")

    def from_next_turn(self, job: Job, tags: Tags, now_s: float) -> None:
        """The next turn is here: take what it carries, else the gap, unless the client told."""
        if job.finished_s is None or job.is_tool_observed:
            return
        command = job.decision.command if job.decision is not None else None
        if tags.last_tool_s is not None:
            tool = tool_name(tags.last_tool) if tags.last_tool else job.tool
            command = tags.last_tool or command
            self._observe(job, tool, command, tags.last_tool_s, "piggyback")
        elif not job.live:
            self._observe(job, job.tool, command, now_s - job.finished_s, "gap")

    def from_release(self, job: Job, now_s: float) -> None:
        """The job is over while tools of it run: they took at least so long.

        Only a release tells so. A lease that runs out does not: the client may have gone away
        right after it said that the tool had started.
        """
        for running in job.running:
            ran_s = now_s - running.started_s
            if self._forecaster is not None and running.command and ran_s > MIN_BOUND_S:
                self._forecaster.observe(running.command, ran_s, is_lower_bound=True)
                self._counters.add("tool_observations_total", "source", "cut_short")
        job.running.clear()

    def _observe(
        self, job: Job, tool: str | None, command: str | None, duration_s: float, source: str
    ) -> None:
        job.is_tool_observed = True
        self._durations.observe(tool or None, duration_s)
        if self._forecaster is not None and command:
            self._forecaster.observe(command, duration_s)
        self._counters.add("tool_observations_total", "source", source)
        self._counters.observe("tool_duration_seconds", duration_s)
