"""Scripted replies in the shapes of OpenAI's and Anthropic's APIs: JSON bodies and event streams.

The scripted server sends them; tests of parsers read them directly. Knows nothing about HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

Body = dict[str, Any]

MODEL = "scripted"
MESSAGES_PATH = "/v1/messages"
TOKENS_PATH = "/inference/v1/generate"

_ANTHROPIC_ERRORS: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """One reply of the server; a token count of None is not reported.

    tool_calls: in the shape of a chat message's `tool_calls`; a response gets them as items, a
        message as `tool_use` blocks.
    token_ids: those of a reply in tokens; by default the bytes of the text. A text completion
        gives them as its log-probabilities' tokens, as vLLM does with `return_tokens_as_token_ids`.
    is_aborted: the engine gave it up, as `finish_reason` says in a completion.
    delay_s: how long the server waits before it answers.
    cut_after_events: number of events after which a stream breaks off, as when a server dies.
    """

    text: str = "ok"
    prompt_tokens: int | None = 100
    cached_tokens: int | None = 80
    output_tokens: int = 5
    tool_calls: Sequence[Mapping[str, Any]] = ()
    token_ids: Sequence[int] | None = None
    is_aborted: bool = False
    delay_s: float = 0.0
    cut_after_events: int | None = None


def json_body(path: str, reply: ScriptedReply) -> Body:
    """The whole reply of a route as one JSON object."""
    if path == MESSAGES_PATH:
        return _message(reply)
    if path == "/v1/responses":
        return _response(reply)
    if path == TOKENS_PATH:
        token_ids = list(reply.text.encode() if reply.token_ids is None else reply.token_ids)
        content = [{"token": f"token_id:{token_id}", "logprob": 0.0} for token_id in token_ids]
        choice: Body = {"index": 0, "token_ids": token_ids, "finish_reason": "stop"}
        return {"request_id": "reply-1", "choices": [{**choice, "logprobs": {"content": content}}]}
    if path == "/v1/completions":
        choice = {"index": 0, "text": reply.text, **_finish(reply), "logprobs": None}
        if reply.token_ids is not None:
            tokens = [f"token_id:{token_id}" for token_id in reply.token_ids]
            choice["logprobs"] = {"tokens": tokens, "token_logprobs": [0.0] * len(tokens)}
        return _with_usage(_completion("text_completion", choice), reply)
    message: Body = {"role": "assistant", "content": reply.text}
    if reply.tool_calls:
        message["tool_calls"] = [dict(call) for call in reply.tool_calls]
    choice = {"index": 0, "message": message, **_finish(reply), "logprobs": None}
    return _with_usage(_completion("chat.completion", choice), reply)


def stream_events(path: str, reply: ScriptedReply, *, include_usage: bool) -> Iterator[bytes]:
    """The reply of a route as server-sent events, one word of text in each."""
    if path in ("/v1/responses", MESSAGES_PATH):
        events = _message_events if path == MESSAGES_PATH else _response_events
        for event in events(reply):
            yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
        return
    is_chat = path == "/v1/chat/completions"
    kind = "chat.completion.chunk" if is_chat else "text_completion"
    for word in [*_words(reply.text), None]:
        choice: Body = {"index": 0, "finish_reason": None}
        if word is None:
            choice |= _finish(reply)
        if is_chat:
            choice["delta"] = {} if word is None else {"role": "assistant", "content": word}
        else:
            choice["text"] = word or ""
        if is_chat and word is None and reply.tool_calls:
            calls = [{"index": i, **call} for i, call in enumerate(reply.tool_calls)]
            yield _data(
                _completion(kind, {**choice, "delta": {"tool_calls": calls}, "finish_reason": None})
            )
        yield _data(_completion(kind, choice))
    if include_usage:
        yield _data(_with_usage({**_completion(kind, {}), "choices": []}, reply))
    yield b"data: [DONE]\n\n"


def error_body(path: str, status: int, message: str) -> Body:
    """An error in the shape of the API that a route belongs to."""
    if path == MESSAGES_PATH:
        kind = _ANTHROPIC_ERRORS.get(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}
    return {"error": {"message": message, "type": "scripted", "code": status}}


def _finish(reply: ScriptedReply) -> Body:
    reason = "abort" if reply.is_aborted else "tool_calls" if reply.tool_calls else "stop"
    return {"finish_reason": reason}


def _completion(kind: str, choice: Body) -> Body:
    return {"id": "reply-1", "object": kind, "created": 0, "model": MODEL, "choices": [choice]}


def _with_usage(body: Body, reply: ScriptedReply) -> Body:
    if reply.prompt_tokens is None:
        return body
    usage: Body = {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.output_tokens,
        "total_tokens": reply.prompt_tokens + reply.output_tokens,
    }
    if reply.cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": reply.cached_tokens}
    return {**body, "usage": usage}


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
            for word in _words(reply.text)
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
            deltas = [{"type": "text_delta", "text": word} for word in _words(block["text"])]
        else:
            empty = {"input": {}}
            pieces = _words(json.dumps(block["input"]))
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        yield {"type": "content_block_start", "index": index, "content_block": {**block, **empty}}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {name: message[name] for name in ("stop_reason", "stop_sequence")}
    yield {"type": "message_delta", "delta": end, "usage": message["usage"]}
    yield {"type": "message_stop"}


def _words(text: str) -> list[str]:
    """The text in pieces that add up to it."""
    return [piece + " " for piece in text.split(" ")[:-1]] + text.split(" ")[-1:]


def _data(body: Body) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()
