"""Makes OpenTelemetry spans of the policy's decisions, where vLLM's own tracing is on.

vLLM offers no way to add to its span of a request, which the API server makes at the end. So the
engine makes two of its own below the same trace context: `agentkv.turn`, from a turn's arrival to
its end, and `agentkv.pin`, while its KV is pinned. The events of the event log, without commands,
are their span events. Runs on the engine's main thread; vLLM's provider exports in one of its own.
Source: OutputProcessor.do_tracing (vllm/v1/engine/output_processor.py) and
EngineCoreProc.run_engine_core (core.py), 0.32.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from agentkv.events import Arrived, JobEvent, details

TURN, PIN = "agentkv.turn", "agentkv.pin"
BEGINS = {"arrival": TURN, "pinned": PIN}
ENDS = {"finish": (TURN,), "aborted": (TURN,), "unpinned": (PIN,), "closed": (TURN, PIN)}
OF_PINS = frozenset(
    {"pinned", "decision", "trimmed", "unpinned", "tool_started", "tool_finished", "closed"}
)
"""Events between two turns; the others are of a turn."""
MAX_HEADER_CHARS = 512
"""Longer trace headers are left out: W3C lets a `tracestate` be cut so."""
WITHHELD = frozenset({"event", "command"})


class DecisionSpans:
    """Keeps the open spans of those jobs whose requests came with a trace context."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("agentkv")
        self._contexts: dict[str, Context] = {}
        """Where a job's trace goes on; that of its newest turn, until the job is over."""
        self._open: dict[tuple[str, str], trace.Span] = {}

    def on_arrived(self, event: Arrived) -> None:
        """Take the trace context of the request, then its arrival."""
        headers = event.prompt.trace_headers
        if headers:
            headers = {
                name: text for name, text in headers.items() if len(text) <= MAX_HEADER_CHARS
            }
            self._contexts[event.job_id] = TraceContextTextMapPropagator().extract(headers)
        else:
            self._contexts.pop(event.job_id, None)
        self.on_event(event)

    def on_event(self, event: JobEvent) -> None:
        """Open, extend or end the spans of a job."""
        job_id = event.job_id
        begun, context = BEGINS.get(event.name), self._contexts.get(job_id)
        if begun is not None and context is not None:
            self._end(job_id, begun)
            span = self._tracer.start_span(begun, context)
            span.set_attribute("agentkv.job.id", job_id.own_id)
            self._open[job_id, begun] = span
        known = self._open.get((job_id, PIN if event.name in OF_PINS else TURN))
        if known is not None:
            known.add_event(event.name, _attributes(details(event)))
        for name in ENDS.get(event.name, ()):
            self._end(job_id, name)
        if event.name == "closed":
            self._contexts.pop(job_id, None)

    def _end(self, job_id: str, name: str) -> None:
        span = self._open.pop((job_id, name), None)
        if span is not None:
            span.end()


def _attributes(shown: Mapping[str, object]) -> dict[str, Any]:
    return {
        f"agentkv.{name}": value
        for name, value in shown.items()
        if name not in WITHHELD and isinstance(value, str | int | float | bool)
    }
