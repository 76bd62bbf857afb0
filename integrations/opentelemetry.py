"""OpenTelemetry spans of jobs, turns and tools, by its conventions for generative AI.

`agentkv.tracing` imports it for the first job whose spans are wanted. A job is an
`invoke_agent` span, a turn a `chat` span, a tool an `execute_tool` span. Where the framework has
opened a span for the same thing already, that one gets our attributes, and no second one is made.
Prompts, replies, commands and arguments are in none of them. Nothing here raises.
Source: OpenTelemetry semantic conventions 1.38, gen-ai-spans.md and gen-ai-agent-spans.md.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, StatusCode

import agentkv
from agentkv.client.patches import harmless
from agentkv.tracing import EXPORTER_VARIABLE, RequestShape

_harmless = harmless("could not trace a job")

OPERATION = "gen_ai.operation.name"
JOB_ID = "agentkv.job.id"
SAME_OPERATION: Mapping[str, tuple[frozenset[str], str]] = {
    "invoke_agent": (frozenset({"invoke_agent"}), "AGENT"),
    "chat": (frozenset({"chat", "text_completion", "generate_content"}), "LLM"),
    "execute_tool": (frozenset({"execute_tool"}), "TOOL"),
}
"""Our operation: the values of OPERATION, and of OpenInference's kind of span, that mean it."""


@_harmless
def open_trace(job_id: str, parent_job_id: str | None) -> TracedJob | None:
    """Open the span of a job; None if nobody takes spans."""
    tracer = _tracer()
    if tracer is None:
        return None
    attributes = {
        JOB_ID: job_id,
        "agentkv.parent_job.id": parent_job_id,
        "gen_ai.conversation.id": job_id,
    }
    span = TracedSpan.open(tracer, "invoke_agent", None, attributes, SpanKind.INTERNAL)
    return TracedJob(tracer, job_id, span)


def _tracer() -> trace.Tracer | None:
    """The tracer of the program's provider, or of one made as OTEL_TRACES_EXPORTER says."""
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider) and not _set_up():
        return None
    return trace.get_tracer("agentkv", agentkv.__version__)


@functools.cache
def _set_up() -> bool:
    """Set up OpenTelemetry's SDK by its variables, once; False if they name no exporter."""
    names = [name.strip() for name in os.environ.get(EXPORTER_VARIABLE, "").split(",")]
    names = [name for name in names if name not in ("", "none")]
    if not names:
        return False
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    for name in names:
        if name == "otlp":
            protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
            protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", protocol)
            name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
        (exporter,) = entry_points(group="opentelemetry_traces_exporter", name=name)
        provider.add_span_processor(BatchSpanProcessor(exporter.load()()))
    trace.set_tracer_provider(provider)
    return True


class TracedSpan:
    """A span that is current until it is left: ours, or the framework's for the same thing."""

    def __init__(self, span: trace.Span, *, is_ours: bool) -> None:
        self.span = span
        self.headers: dict[str, str] = {}
        self._is_ours = is_ours
        self._before = otel_context.get_current()
        self._context = trace.set_span_in_context(span, self._before)
        if is_ours:
            otel_context.attach(self._context)
        propagate.inject(self.headers, self._context)

    @classmethod
    def open(
        cls,
        tracer: trace.Tracer,
        operation: str,
        subject: str | None,
        attributes: Mapping[str, Any],
        kind: SpanKind,
        parent: TracedSpan | None = None,
    ) -> TracedSpan:
        """Open the span of an operation inside of `parent`, or take the framework's open one.

        Where `parent` is not known to be current, as in a thread of its own, it stands in.
        """
        known = {name: value for name, value in attributes.items() if value is not None}
        current = trace.get_current_span()
        if _is_for(current, operation):
            current.set_attributes(known)
            return cls(current, is_ours=False)
        context = None
        if parent is not None and not parent.encloses(current):
            context = trace.set_span_in_context(parent.span)
        span = tracer.start_span(
            f"{operation} {subject}" if subject else operation,
            context,
            kind,
            {OPERATION: operation, **known},
        )
        return cls(span, is_ours=True)

    def encloses(self, span: trace.Span) -> bool:
        """True if a span, the current one, may be this one or one inside of it."""
        is_same_trace = span.get_span_context().trace_id == self.span.get_span_context().trace_id
        return is_same_trace and span is not trace.get_current_span(self._before)

    @_harmless
    def leave(self) -> None:
        """Make the span before it current again, unless another context is active by now."""
        if self._is_ours and otel_context.get_current() is self._context:
            otel_context.attach(self._before)

    @_harmless
    def end(self, error: object = None) -> None:
        """End the span, unless it is the framework's."""
        if not self._is_ours:
            return
        if error is not None:
            is_exception = isinstance(error, BaseException)
            kind = type(error).__qualname__ if is_exception else str(error)
            self.span.set_attribute("error.type", kind)
            self.span.set_status(StatusCode.ERROR, kind)
        self.span.end()


class TracedJob:
    """The span of a job, and what opens those of its turns and tools."""

    def __init__(self, tracer: trace.Tracer, job_id: str, span: TracedSpan) -> None:
        self._tracer = tracer
        self._job_id = job_id
        self._job = span

    @_harmless
    def turn(self, number: int, request: RequestShape) -> TracedSpan:
        """Open the span of a request to the model."""
        server = urlsplit(request.server_url)
        attributes = {
            JOB_ID: self._job_id,
            "agentkv.turn": number,
            "gen_ai.conversation.id": self._job_id,
            "gen_ai.provider.name": "vllm" if request.is_vllm else None,
            "gen_ai.request.model": request.model,
            "server.address": server.hostname,
            "server.port": server.port,
        }
        return self._open(request.operation, request.model, attributes, SpanKind.CLIENT)

    @_harmless
    def tool(self, name: str) -> TracedSpan:
        """Open the span of a tool."""
        attributes = {JOB_ID: self._job_id, "gen_ai.tool.name": name}
        return self._open("execute_tool", name, attributes, SpanKind.INTERNAL)

    def _open(
        self, operation: str, subject: str | None, attributes: Mapping[str, Any], kind: SpanKind
    ) -> TracedSpan:
        return TracedSpan.open(self._tracer, operation, subject, attributes, kind, parent=self._job)

    @_harmless
    def end(self, error: object, num_turns: int) -> None:
        """End the span of the job, with its turns; the tokens are in the server's own spans."""
        self._job.span.set_attributes({"agentkv.turns": num_turns})
        self._job.leave()
        self._job.end(error)


def _is_for(span: trace.Span, operation: str) -> bool:
    """True if somebody else's span is open for the same thing, so that ours would double it."""
    given: Mapping[str, Any] = getattr(span, "attributes", None) or {}
    if not span.is_recording() or JOB_ID in given:
        return False
    operations, kind = SAME_OPERATION.get(operation, SAME_OPERATION["chat"])
    return given.get(OPERATION) in operations or given.get("openinference.span.kind") == kind
