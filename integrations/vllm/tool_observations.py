"""How long a job's tools take, from whatever source says it best: one source for each turn.

The client's own report comes first, then the duration piggy-backed on the next turn, then the gap
between a turn's end and the next one's arrival.
"""

from __future__ import annotations

from agentkv.ttl import ToolDurations
from agentkv.wire import Tags

from .counters import Counters
from .jobs import Job


def tool_name(text: str) -> str:
    """The first word of a command: the tool as the published Continuum names it."""
    return text.split(maxsplit=1)[0][:256] if text.strip() else ""


class ToolObservations:
    """Feeds measured durations to the policy's distributions and counts them by source."""

    def __init__(self, durations: ToolDurations, counters: Counters) -> None:
        self._durations = durations
        self._counters = counters

    def from_client(self, job: Job, tool: str, duration_s: float) -> None:
        """The client measured a tool and says so."""
        self._observe(job, tool, duration_s, "client")

    def from_next_turn(self, job: Job, tags: Tags, now_s: float) -> None:
        """The next turn is here: take what it carries, else the gap, unless the client told."""
        if job.finished_s is None or job.is_tool_observed:
            return
        if tags.last_tool_s is not None:
            tool = tool_name(tags.last_tool) if tags.last_tool else job.tool
            self._observe(job, tool, tags.last_tool_s, "piggyback")
        elif not job.live:
            self._observe(job, job.tool, now_s - job.finished_s, "gap")

    def _observe(self, job: Job, tool: str | None, duration_s: float, source: str) -> None:
        job.is_tool_observed = True
        self._durations.observe(tool or None, duration_s)
        self._counters.add("tool_observations_total", "source", source)
        self._counters.observe("tool_duration_seconds", duration_s)
