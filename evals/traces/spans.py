"""Spans of OpenTelemetry's GenAI conventions, as OTLP JSON: a document, or a line an export.

Source: OpenTelemetry semantic conventions for generative AI (`gen_ai.*`), development status;
older names of usage are read, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .text import command_of
from .turns import TracedTurn, with_kept

_CALLS = {"chat", "text_completion", "generate_content"}
_AGENT = "invoke_agent"
_TOOL = "execute_tool"
_PROMPT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_CACHED = ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cached_tokens")


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


def is_otlp(row: Mapping[str, Any]) -> bool:
    """True for an export of spans."""
    return isinstance(row.get("resourceSpans"), list)


def read_otlp(name: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[TracedTurn]:
    """A job is an agent's invocation, else a conversation, else a trace; an invocation within
    another is its sub-agent."""
    spans = [span for row in rows for span in _spans(row)]
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    jobs, tools = defaultdict(list), defaultdict(list)
    parents: dict[str, str | None] = {}
    for span in spans:
        if span.operation in _CALLS or (span.operation is None and span.first(_PROMPT)):
            job_id, parents_id = _job_of(span, by_id)
            jobs[job_id].append(span)
            parents.setdefault(job_id, parents_id)
        elif span.operation == _TOOL:
            tools[_job_of(span, by_id)[0]].append(span)
    for job_id, calls in jobs.items():
        yield from _turns(job_id, parents[job_id], calls, tools[job_id])


def _spans(row: Mapping[str, Any]) -> Iterator[_Span]:
    for resource in row["resourceSpans"]:
        for scope in resource.get("scopeSpans") or ():
            for span in scope.get("spans") or ():
                yield _Span(
                    str(span.get("traceId")),
                    str(span.get("spanId")),
                    str(span.get("parentSpanId") or ""),
                    int(span["startTimeUnixNano"]) / 1e9,
                    int(span["endTimeUnixNano"]) / 1e9,
                    {fact["key"]: _value(fact.get("value")) for fact in span.get("attributes", ())},
                )


def _value(value: Mapping[str, Any] | None) -> Any:
    return next(iter((value or {}).values()), None)


def _job_of(span: _Span, by_id: Mapping[tuple[str, str], _Span]) -> tuple[str, str | None]:
    """The job of a span, and its parent job."""
    agents, seen = [], span
    for _ in range(len(by_id)):  # a circle of parents ends, too
        above = by_id.get((seen.trace_id, seen.parent_id))
        if above is None:
            break
        if above.operation == _AGENT:
            agents.append(f"{above.trace_id}/{above.span_id}")
        seen = above
    if agents:
        return agents[0], agents[1] if len(agents) > 1 else None
    return str(span.facts.get("gen_ai.conversation.id") or span.trace_id), None


def _turns(
    job_id: str, parent: str | None, calls: Sequence[_Span], tools: Sequence[_Span]
) -> Iterator[TracedTurn]:
    calls = sorted(calls, key=lambda span: span.start_s)
    turns = []
    for number, call in enumerate(calls):
        next_s = calls[number + 1].start_s if number + 1 < len(calls) else float("inf")
        ran = [tool for tool in tools if call.start_s <= tool.start_s < next_s]
        commands = [
            command_of(
                tool.facts.get("gen_ai.tool.name"), tool.facts.get("gen_ai.tool.call.arguments")
            )
            for tool in ran
        ]
        tool_s = (
            max(tool.end_s for tool in ran) - min(tool.start_s for tool in ran) if ran else None
        )
        turns.append(
            TracedTurn(
                job_id=job_id,
                turn=number,
                prompt_tokens=max(1, call.first(_PROMPT) or 0),
                output_tokens=call.first(_OUTPUT) or 0,
                command="\n".join(commands) or None,
                tool_s=tool_s,
                parent_job_id=parent,
                sent_s=call.start_s,
                ended_s=call.end_s,
            )
        )
    yield from with_kept(turns, [call.first(_CACHED) for call in calls])
