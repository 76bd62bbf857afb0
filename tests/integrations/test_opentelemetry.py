"""Spans of jobs, turns and tools: in the SDK's memory, and at a receiver of OTLP over HTTP."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import agentkv
from agentkv.client.server import forget_servers
from tests.scripted_server import ScriptedServer
from tests.span_receiver import span_receiver

CHAT: dict[str, Any] = {"model": "m", "messages": []}


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """A provider that keeps the spans in memory, as a program would have configured it."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # OpenTelemetry lets a process set its provider once
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    forget_servers()
    with ScriptedServer() as server:
        yield server
        assert agentkv.flush(timeout_s=20)
    agentkv.uninstrument()


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="key", max_retries=0) as client:
        yield client


def named(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    """The one finished span of this name."""
    (span,) = [span for span in exporter.get_finished_spans() if span.name == name]
    return span


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent_id(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def test_a_job_its_turns_and_its_tools_are_spans_of_one_trace(
    exporter: InMemorySpanExporter, server: ScriptedServer, client: OpenAI
) -> None:
    """Names and attributes are those of the conventions; the command itself is in none of them."""
    with agentkv.session(client, job_id="a") as job:
        job.client.chat.completions.create(**CHAT)
        with job.tool("pytest -q secret_tests"):
            pass
    turn, tool, whole = exporter.get_finished_spans()
    assert [span.name for span in (turn, tool, whole)] == [
        "chat m",
        "execute_tool pytest",
        "invoke_agent",
    ]
    assert {parent_id(turn), parent_id(tool)} == {whole.get_span_context().span_id}
    assert {attributes(span)["agentkv.job.id"] for span in (turn, tool, whole)} == {"a"}
    assert (
        attributes(turn).items()
        >= {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "m",
            "gen_ai.conversation.id": "a",
            "server.address": "127.0.0.1",
            "agentkv.turn": 1,
        }.items()
    )
    assert attributes(whole)["agentkv.turns"] == 1
    assert "secret_tests" not in repr([span.to_json() for span in (turn, tool, whole)])


def test_the_request_carries_the_trace_of_its_turn(
    exporter: InMemorySpanExporter, server: ScriptedServer, client: OpenAI
) -> None:
    """An SDK's request and one of an HTTP library both have a W3C traceparent of their own span."""
    with agentkv.session(job_id="a"):
        client.chat.completions.create(**CHAT)
        httpx.post(f"{server.base_url}/chat/completions", json=CHAT).raise_for_status()
    turns = [span for span in exporter.get_finished_spans() if span.name == "chat m"]
    for request, turn in zip(server.turns, turns, strict=True):
        context = turn.get_span_context()
        sent = f"00-{context.trace_id:032x}-{context.span_id:016x}-"
        assert request.headers["traceparent"].startswith(sent)


def test_a_failed_request_is_a_failed_span(
    exporter: InMemorySpanExporter, server: ScriptedServer, client: OpenAI
) -> None:
    """The HTTP status is the type of the error, and the agent gets the exception."""
    server.fail_next(400)
    with agentkv.session(client) as job, pytest.raises(openai.BadRequestError):
        job.client.chat.completions.create(**CHAT)
    span = named(exporter, "chat m")
    assert not span.status.is_ok
    assert attributes(span)["error.type"] == "400"


def test_a_turn_in_a_thread_belongs_to_its_job(
    exporter: InMemorySpanExporter, server: ScriptedServer, client: OpenAI
) -> None:
    """A new thread has no current span, and the turn is part of the job's trace all the same."""
    with agentkv.session(client) as job:
        call = threading.Thread(target=job.client.chat.completions.create, kwargs=CHAT)
        call.start()
        call.join()
    whole = named(exporter, "invoke_agent")
    assert parent_id(named(exporter, "chat m")) == whole.get_span_context().span_id


def test_spans_of_the_program_nest_with_ours(
    exporter: InMemorySpanExporter, server: ScriptedServer, client: OpenAI
) -> None:
    """The job is part of the caller's span, the caller's steps of the job, and turns of a step."""
    tracer = trace.get_tracer("program")
    with tracer.start_as_current_span("request"), agentkv.session(client) as job:
        with tracer.start_as_current_span("step"):
            job.client.chat.completions.create(**CHAT)
        before = trace.get_current_span()
    assert attributes(named(exporter, "invoke_agent")) == attributes(before)  # type: ignore[arg-type]
    chain = [named(exporter, name) for name in ("chat m", "step", "invoke_agent", "request")]
    ids = [span.get_span_context().span_id for span in chain]
    assert [parent_id(span) for span in chain] == [*ids[1:], None]
    assert trace.get_current_span() is trace.INVALID_SPAN


@pytest.mark.parametrize(
    "theirs", [{"gen_ai.operation.name": "chat"}, {"openinference.span.kind": "LLM"}]
)
def test_a_call_that_a_framework_traces_gets_no_second_span(
    theirs: dict[str, str], exporter: InMemorySpanExporter, server: ScriptedServer, client: OpenAI
) -> None:
    """The framework's span of the call gets our attributes, and its context goes to the server."""
    tracer = trace.get_tracer("framework")
    with (
        agentkv.session(client, job_id="a") as job,
        tracer.start_as_current_span("their call", attributes=theirs) as span,
    ):
        job.client.chat.completions.create(**CHAT)
        assert span.is_recording()
    names = [span.name for span in exporter.get_finished_spans()]
    assert names == ["their call", "invoke_agent"]
    assert attributes(named(exporter, "their call"))["agentkv.turn"] == 1
    assert f"{span.get_span_context().span_id:016x}" in server.turns[0].headers["traceparent"]


def test_a_fault_of_the_tracer_breaks_no_call(
    exporter: InMemorySpanExporter,
    server: ScriptedServer,
    client: OpenAI,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A provider whose spans fail at everything costs the spans, one log line, and nothing else."""

    class Broken(TracerProvider):
        def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
            return self  # has no start_span

    monkeypatch.setattr(trace, "_TRACER_PROVIDER", Broken())
    monkeypatch.setattr("agentkv.client.patches._has_logged_failure", False)
    with caplog.at_level(logging.ERROR), agentkv.session(client) as job:
        job.client.chat.completions.create(**CHAT)
        with job.tool("ls"):
            pass
    assert job.summary().turns == 1
    assert len(caplog.records) == 1


AGENT = """
import sys
import openai, agentkv
assert not any(name.startswith("opentelemetry") for name in sys.modules), "imported with agentkv"
client = openai.OpenAI(base_url=sys.argv[1], api_key="key", max_retries=0)
with agentkv.session(client, job_id="a") as job:
    job.client.chat.completions.create(model="m", messages=[])
    with job.tool("ls"):
        pass
print("agentkv.integrations.opentelemetry" in sys.modules)
"""


def run_agent(server: ScriptedServer, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if "OTEL" not in name}
    done = subprocess.run(
        [sys.executable, "-c", AGENT, server.base_url],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_without_an_exporter_nothing_is_imported(server: ScriptedServer) -> None:
    """A program that has not set OpenTelemetry up does not import our module for it."""
    assert run_agent(server) == "False"


def test_the_standard_variables_alone_send_spans_to_a_collector(server: ScriptedServer) -> None:
    """A receiver of OTLP over HTTP gets the three spans of a program that sets nothing up."""
    with span_receiver() as receiver:
        answer = run_agent(
            server,
            OTEL_TRACES_EXPORTER="otlp",
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url,
            OTEL_SERVICE_NAME="my-agent",
        )
    assert answer == "True"
    assert "my-agent" in repr(receiver.resources[0].resource)
    names = {span.name for span in receiver.spans}
    assert names == {"invoke_agent", "chat m", "execute_tool ls"}
    assert len({span.trace_id for span in receiver.spans}) == 1


def test_an_exporter_that_is_not_installed_costs_the_spans_alone(server: ScriptedServer) -> None:
    """With a name that no package has the agent runs as ever."""
    assert run_agent(server, OTEL_TRACES_EXPORTER="no-such-exporter") == "True"
