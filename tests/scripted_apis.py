"""A scripted server that also speaks OpenAI's responses, Anthropic's messages, and tokens."""

import json
from collections.abc import Callable, Iterator, Mapping
from uuid import uuid4

from tests import scripted_server
from tests.scripted_server import (
    MODEL,
    SHAPES,
    Body,
    ReplyShape,
    ScriptedReply,
    openai_error,
    words_of,
)

MESSAGES_PATH = "/v1/messages"
TOKENS_PATH = "/inference/v1/generate"
_ANTHROPIC_FIELDS = (
    "model messages max_tokens system stream temperature top_p top_k stop_sequences tools "
    "tool_choice metadata thinking output_config context_management service_tier"
)
_ANTHROPIC_ERRORS: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def _events_of(
    events: Callable[[ScriptedReply], Iterator[Body]],
) -> Callable[[ScriptedReply, bool], Iterator[bytes]]:
    def encoded(reply: ScriptedReply, include_usage: bool) -> Iterator[bytes]:
        for event in events(reply):
            yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()

    return encoded


def _tokens(reply: ScriptedReply) -> Body:
    """A reply in tokens: the bytes of the text."""
    choice = {"index": 0, "token_ids": list(reply.text.encode()), "finish_reason": "stop"}
    return {"request_id": "reply-1", "choices": [choice]}


def _anthropic_error(status: int, message: str) -> Body:
    kind = _ANTHROPIC_ERRORS.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def _response(reply: ScriptedReply, status: str = "completed") -> Body:
    usage = {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": reply.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": reply.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": (reply.prompt_tokens or 0) + reply.output_tokens,
    }
    is_complete = status == "completed"
    return {
        "id": "resp-1",
        "object": "response",
        "created_at": 0,
        "model": MODEL,
        "status": status,
        "output": [_response_message(reply), *_function_calls(reply)] if is_complete else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage if is_complete and reply.prompt_tokens is not None else None,
    }


def _response_message(reply: ScriptedReply) -> Body:
    return {
        "id": "msg-1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [_response_text(reply.text)],
    }


def _function_calls(reply: ScriptedReply) -> list[Body]:
    return [
        {
            "id": f"call-{number}",
            "type": "function_call",
            "status": "completed",
            "call_id": call.get("id", f"call-{number}"),
            **call["function"],
        }
        for number, call in enumerate(reply.tool_calls, 1)
    ]


def _response_text(text: str) -> Body:
    return {"type": "output_text", "text": text, "annotations": []}


def _response_events(reply: ScriptedReply) -> Iterator[Body]:
    at_item = {"output_index": 0, "item_id": "msg-1"}
    at_part = {**at_item, "content_index": 0}
    empty_item = {**_response_message(reply), "content": [], "status": "in_progress"}
    events: list[Body] = [
        {"type": "response.created", "response": _response(reply, "in_progress")},
        {"type": "response.output_item.added", "output_index": 0, "item": empty_item},
        {"type": "response.content_part.added", **at_part, "part": _response_text("")},
        *(
            {"type": "response.output_text.delta", **at_part, "delta": word, "logprobs": []}
            for word in words_of(reply.text)
        ),
        {"type": "response.output_text.done", **at_part, "text": reply.text, "logprobs": []},
        {"type": "response.content_part.done", **at_part, "part": _response_text(reply.text)},
        {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": _response_message(reply),
        },
        *(
            {"type": f"response.output_item.{state}", "output_index": index, "item": call}
            for index, call in enumerate(_function_calls(reply), 1)
            for state in ("added", "done")
        ),
        {"type": "response.completed", "response": _response(reply)},
    ]
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


def _message(reply: ScriptedReply) -> Body:
    blocks: list[Body] = [{"type": "text", "text": reply.text}] if reply.text else []
    for number, call in enumerate(reply.tool_calls, 1):
        block = {"type": "tool_use", "id": call.get("id", f"toolu-{number}")}
        function = call["function"]
        arguments = json.loads(function["arguments"])
        blocks.append({**block, "name": function["name"], "input": arguments})
    return {
        "id": f"msg-{uuid4().hex}",  # Claude Code merges messages of the same id
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": blocks,
        "stop_reason": "tool_use" if reply.tool_calls else "end_turn",
        "stop_sequence": None,
        "usage": _message_usage(reply),
    }


def _message_usage(reply: ScriptedReply) -> Body:
    """Anthropic's `input_tokens` leaves out those that were read from the cache."""
    usage = {"output_tokens": reply.output_tokens}
    if reply.prompt_tokens is not None:
        usage["input_tokens"] = reply.prompt_tokens - (reply.cached_tokens or 0)
        if reply.cached_tokens is not None:
            usage["cache_read_input_tokens"] = reply.cached_tokens
    return usage


def _message_events(reply: ScriptedReply) -> Iterator[Body]:
    message = _message(reply)
    start: Body = {
        "content": [],
        "stop_reason": None,
        "usage": {**message["usage"], "output_tokens": 1},
    }
    yield {"type": "message_start", "message": {**message, **start}}
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            empty: Body = {"text": ""}
            deltas = [{"type": "text_delta", "text": word} for word in words_of(block["text"])]
        else:
            empty = {"input": {}}
            pieces = words_of(json.dumps(block["input"]))
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        yield {"type": "content_block_start", "index": index, "content_block": {**block, **empty}}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {name: message[name] for name in ("stop_reason", "stop_sequence")}
    yield {"type": "message_delta", "delta": end, "usage": message["usage"]}
    yield {"type": "message_stop"}


class ScriptedServer(scripted_server.ScriptedServer):
    """The public fake with more routes."""

    shapes: Mapping[str, ReplyShape] = {
        **SHAPES,
        "/v1/responses": ReplyShape(_response, _events_of(_response_events), openai_error),
        MESSAGES_PATH: ReplyShape(
            _message,
            _events_of(_message_events),
            _anthropic_error,
            frozenset(_ANTHROPIC_FIELDS.split()),
        ),
        TOKENS_PATH: ReplyShape(_tokens, lambda reply, include_usage: iter(()), openai_error),
    }


def json_body(path: str, reply: ScriptedReply) -> Body:
    """The whole reply of a route as one JSON object."""
    return ScriptedServer.shapes[path].whole(reply)


def stream_events(path: str, reply: ScriptedReply, *, include_usage: bool) -> Iterator[bytes]:
    """The reply of a route as server-sent events."""
    return ScriptedServer.shapes[path].events(reply, include_usage)


__all__ = ["ScriptedReply", "ScriptedServer", "json_body", "stream_events"]
