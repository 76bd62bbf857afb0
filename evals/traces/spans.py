"""Spans of OpenTelemetry's GenAI conventions, as OTLP JSON: a document, or a line an export.

Source: OpenTelemetry semantic conventions for generative AI (`gen_ai.*`), development status;
older names of usage are read, too.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..requests import messages_of
from .coding_agents import command_of
from .turns import ModelCall, TracedTurn, turns_of

_CALLS = {"chat", "text_completion", "generate_content"}
_PROMPT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_CACHED = ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cached_tokens")

_REPLY = "gen_ai.output.messages"


@dataclass(slots=True)
class _Span:
    """One span; times in seconds."""

    trace_id: str
    span_id: str
    parent_id: str
    start_s: float
    end_s: float
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def operation(self) -> object:
        return self.facts.get("gen_ai.operation.name")

    def first(self, names: Sequence[str]) -> int | None:
        """The first of these attributes that the span has, as a number."""
        return next((int(self.facts[name]) for name in names if name in self.facts), None)


def read_otlp(_: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[TracedTurn]:
    """A job is an agent's invocation, else a conversation, else a trace; an invocation within
    another is its sub-agent."""
    spans = sorted((span for row in rows for span in _spans(row)), key=lambda span: span.start_s)
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    jobs, tools = defaultdict(list), defaultdict(list)
    for span in spans:
        if span.operation in _CALLS or (span.operation is None and span.first(_PROMPT)):
            jobs[_job_of(span, by_id)].append(span)
        elif span.operation == "execute_tool":
            tools[_job_of(span, by_id)].append(span)
    for job, calls in jobs.items():
        job_id, parent = job
        yield from turns_of(job_id, _calls(calls, tools[job]), parent)


def _spans(row: Mapping[str, Any]) -> Iterator[_Span]:
    for resource in row["resourceSpans"]:
        for scope in resource.get("scopeSpans") or ():
            for span in scope.get("spans") or ():
                # the messages may be those of an event
                holders = (span, *(span.get("events") or ()))
                facts = [fact for each in holders for fact in each.get("attributes") or ()]
                yield _Span(
                    str(span.get("traceId")),
                    str(span.get("spanId")),
                    str(span.get("parentSpanId") or ""),
                    int(span["startTimeUnixNano"]) / 1e9,
                    int(span["endTimeUnixNano"]) / 1e9,
                    {fact["key"]: _plain(fact.get("value") or {}) for fact in facts},
                )


def _plain(value: Mapping[str, Any]) -> Any:
    """A value of OTLP as plain data."""
    held: Any = next(iter(value.values()), None)
    if "arrayValue" in value:
        return [_plain(each) for each in held.get("values") or ()]
    if "kvlistValue" in value:
        return {each["key"]: _plain(each["value"]) for each in held.get("values") or ()}
    return held


def _job_of(span: _Span, by_id: Mapping[tuple[str, str], _Span]) -> tuple[str, str | None]:
    """The job of a span, and its parent job."""
    agents: list[str] = []
    for _ in range(len(by_id)):  # a circle of parents ends, too
        above = by_id.get((span.trace_id, span.parent_id))
        if above is None:
            break
        if above.operation == "invoke_agent":
            agents.append(f"{above.trace_id}/{above.span_id}")
        span = above
    if agents:
        return agents[0], agents[1] if len(agents) > 1 else None
    return str(span.facts.get("gen_ai.conversation.id") or span.trace_id), None


def _calls(spans: Sequence[_Span], tools: Sequence[_Span]) -> Iterator[ModelCall]:
    starts_s = [*(span.start_s for span in spans[1:]), math.inf]
    for span, next_s in zip(spans, starts_s, strict=True):
        ran = [tool for tool in tools if span.start_s <= tool.start_s < next_s]
        names = ("gen_ai.tool.name", "gen_ai.tool.call.arguments")
        messages = messages_of({**span.facts, _REPLY: None})
        guess = sum(len(message.text) for message in messages) // 4
        yield ModelCall(
            sent_s=span.start_s,
            ended_s=span.end_s,
            prompt_tokens=span.first(_PROMPT) or max(1, guess),
            output_tokens=span.first(_OUTPUT) or 0,
            cached_tokens=span.first(_CACHED),
            commands=[command_of(*map(tool.facts.get, names)) for tool in ran],
            tool_s=max(tool.end_s for tool in ran) - ran[0].start_s if ran else None,
            messages=messages,
            reply=messages_of({_REPLY: span.facts.get(_REPLY)}),
        )
