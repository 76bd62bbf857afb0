"""Token counts, read from whole replies and from bytes as they arrive."""

from __future__ import annotations

import json

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv.client.replies import (
    Usage,
    UsageScanner,
    read_usage,
    read_usage_json,
    when_httpx_complete,
)
from tests.scripted_apis import ScriptedReply, json_body, stream_events

PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]
REPLY = ScriptedReply('say "usage": {', prompt_tokens=70, cached_tokens=64, output_tokens=9)
USAGE = Usage(prompt_tokens=70, cached_tokens=64, output_tokens=9)


@pytest.mark.parametrize("path", PATHS)
def test_each_shape_of_reply_has_its_usage(path: str) -> None:
    """Completions, responses and messages are read, whole or in the bytes of a body."""
    body = json_body(path, REPLY)
    assert read_usage(body) == USAGE
    scanner = UsageScanner()
    scanner.feed(json.dumps(body).encode())
    assert scanner.usage() == USAGE


def test_counts_that_are_not_reported_are_none() -> None:
    """Only some servers report cached tokens, and not all report any usage."""
    assert read_usage({"usage": {"prompt_tokens": 3}}) == Usage(3, None, None)
    assert read_usage({"usage": {"input_tokens": 3, "output_tokens": 0}}) == Usage(3, None, 0)
    assert read_usage({"usage": None}) is None
    assert read_usage({}) is None
    assert read_usage_json(b"<html>") is None


def test_the_tokens_of_a_message_are_those_in_the_cache_and_the_rest() -> None:
    """`input_tokens` of a message are what no cache had; its stream begins with them."""
    start = {"input_tokens": 6, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 4}
    message = {"usage": {**start, "output_tokens": 9}}
    assert read_usage(message) == Usage(70, 60, 9)
    scanner = UsageScanner()
    for event in (
        {"type": "message_start", "message": {"usage": {**start, "output_tokens": 1}}},
        {"type": "message_delta", "usage": {"output_tokens": 9, "input_tokens": None}},
    ):
        scanner.feed(f"data: {json.dumps(event)}\n\n".encode())
    assert scanner.usage() == Usage(70, 60, 9)


@pytest.mark.parametrize("path", PATHS)
@settings(deadline=None)
@given(cuts=st.lists(st.integers(1, 60), min_size=1))
def test_the_usage_of_a_stream_is_found_in_any_chunks(path: str, cuts: list[int]) -> None:
    """A chunk of the body may end in the middle of a line."""
    data = b"".join(stream_events(path, REPLY, include_usage=True))
    scanner = UsageScanner()
    position = 0
    while position < len(data):
        size = cuts[position % len(cuts)]
        scanner.feed(data[position : position + size])
        position += size
    assert scanner.usage() == USAGE


def test_a_long_line_in_small_pieces_is_scanned_in_linear_time() -> None:
    """A line of 64 MB in pieces of 1 kB is joined once, not with each piece."""
    scanner = UsageScanner()
    for _ in range(64_000):
        scanner.feed(b" " * 1_000)
    scanner.feed(json.dumps(json_body(PATHS[0], REPLY)).encode())
    assert scanner.usage() == USAGE


def test_a_stream_without_usage_has_none() -> None:
    """Text or a null that looks like a usage object is none."""
    scanner = UsageScanner()
    scanner.feed(b"".join(stream_events(PATHS[0], REPLY, include_usage=False)))
    scanner.feed(b'data: {"choices": [], "usage": null}\n\n')
    assert scanner.usage() is None


DEEP = b'{"usage": {"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}}"


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_deep_reply_reaches_its_reader(is_stream: bool) -> None:
    """Bytes that no parser takes end no reading of the agent's, and their turn is closed."""
    body = b"data: " + DEEP + b"\n\n" if is_stream else DEEP
    content = iter([body]) if is_stream else body
    usages: list[object] = []
    response = httpx.Response(200, content=content)
    when_httpx_complete(response, lambda usage, _: usages.append(usage))
    assert b"".join(response.iter_bytes()) == body
    assert usages == [None]
