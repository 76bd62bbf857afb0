"""Spans of a real server with vLLM's tracing on: the request's own, and those of our decisions."""

from collections.abc import Callable

import httpx
import pytest

from agentkv.server.process import ServerProcess
from tests.server.chat import LIMIT_S, WORDS, wait_for
from tests.span_receiver import span_receiver

pytestmark = [pytest.mark.server, pytest.mark.long]

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_decisions_are_spans_of_the_clients_trace(
    make_server: Callable[..., ServerProcess],
) -> None:
    """A turn and the holding of its KV are spans below the client's, as vLLM's llm_request is."""
    with (
        span_receiver() as receiver,
        make_server(
            *("--otlp-traces-endpoint", f"{receiver.url}/v1/traces"),
            environment={
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
                "OTEL_BSP_SCHEDULE_DELAY": "100",
            },
        ) as server,
    ):
        headers = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
        body = {"model": "tiny", "prompt": WORDS, "max_tokens": 4, "job_id": "traced"}
        for fields in (body, {**body, "job_id": "untraced"}):
            url = f"{server.base_url}/completions"
            httpx.post(url, json=fields, headers=headers, timeout=LIMIT_S).raise_for_status()
            headers = {}
        tool = {"state": "started", "command": "cat private.txt"}
        url = f"{server.base_url}/agentkv/jobs/traced"
        httpx.post(f"{url}/tool", json=tool, timeout=LIMIT_S).raise_for_status()
        httpx.post(f"{url}/release", timeout=LIMIT_S).raise_for_status()
        wanted = {"llm_request", "agentkv.turn", "agentkv.pin"}
        wait_for(lambda: wanted <= {span.name for span in receiver.spans})
    spans = {span.name: span for span in receiver.spans if span.trace_id.hex() == TRACE_ID}
    assert set(spans) == wanted
    assert {span.parent_span_id.hex() for span in spans.values()} == {SPAN_ID}
    turn, pin = spans["agentkv.turn"], spans["agentkv.pin"]
    of_turns = [event.name for event in turn.events]
    assert of_turns == ["arrival", "waiting_to_running", "finish"]
    names = [event.name for event in pin.events]
    assert names[0] == "pinned"
    assert names[-1] == "unpinned"
    assert "released" in repr(pin.events[-1])
    assert "private.txt" not in repr(list(receiver.spans))
    assert not [span for span in receiver.spans if "untraced" in repr(span)]
