"""The policy's decisions as OpenTelemetry spans, where vLLM's own tracing is on.

vLLM makes the span of a request, `llm_request`, in the API server once the request has ended, and
offers no way to add to it. So the engine makes two spans of its own, on the provider that vLLM has
set up in its process, below the same trace context: `agentkv.turn`, from a turn's arrival to its
end, and `agentkv.hold`, for as long as its KV stays pinned. The events of the event log, without
commands, are their span events. Runs on the engine's main thread; vLLM's provider exports in a
thread of its own.
Source: OutputProcessor.do_tracing (vllm/v1/engine/output_processor.py) and
EngineCoreProc.run_engine_core (core.py), 0.32.0.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from agentkv.protocol import client_and_id

TURN, HOLD = "agentkv.turn", "agentkv.hold"
BEGINS = {"arrival": TURN, "pinned": HOLD}
ENDS = {"finish": (TURN,), "aborted": (TURN,), "unpinned": (HOLD,), "closed": (TURN, HOLD)}
OF_HOLDS = frozenset(
    {"pinned", "decision", "trimmed", "unpinned", "tool_started", "tool_finished", "closed"}
)
"""Events between two turns; the others are of a turn."""
WITHHELD = frozenset({"command"})

logger = logging.getLogger(__name__)


class DecisionSpans:
    """The open spans of one engine's jobs, of those whose requests came with a trace context."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("agentkv")
        self._contexts: dict[str, Context] = {}
        """Where a job's trace goes on; that of its newest turn, until the job is over."""
        self._open: dict[tuple[str, str], trace.Span] = {}
        self._has_failed = False

    def turn_arrives(self, job_id: str, headers: Mapping[str, str] | None) -> None:
        """Take the trace context of a request whose arrival will be logged next."""
        if headers:
            self._contexts[job_id] = TraceContextTextMapPropagator().extract(headers)
        else:
            self._contexts.pop(job_id, None)

    def add(self, job_id: str, event: str, details: Mapping[str, object]) -> None:
        """Take an event of the event log. A failure ends all tracing of decisions, and no more."""
        if self._has_failed:
            return
        try:
            self._add(job_id, event, details)
        except Exception:
            self._has_failed = True
            logger.exception("agentkv's spans end here; serving goes on")

    def _add(self, job_id: str, event: str, details: Mapping[str, object]) -> None:
        begun = BEGINS.get(event)
        context = self._contexts.get(job_id)
        if begun is not None and context is not None:
            self._end(job_id, begun)
            span = self._tracer.start_span(begun, context)
            span.set_attribute("agentkv.job.id", client_and_id(job_id)[1])
            self._open[job_id, begun] = span
        known = self._open.get((job_id, HOLD if event in OF_HOLDS else TURN))
        if known is not None:
            known.add_event(event, _attributes(details))
        for name in ENDS.get(event, ()):
            self._end(job_id, name)
        if event == "closed":
            self._contexts.pop(job_id, None)

    def _end(self, job_id: str, name: str) -> None:
        span = self._open.pop((job_id, name), None)
        if span is not None:
            span.end()


def _attributes(details: Mapping[str, object]) -> dict[str, Any]:
    return {
        f"agentkv.{name}": value
        for name, value in details.items()
        if name not in WITHHELD and isinstance(value, str | int | float | bool)
    }
