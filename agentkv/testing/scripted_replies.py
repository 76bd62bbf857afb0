"""Scripted replies in the shapes of OpenAI's chat and text completions: bodies and event streams.

The scripted server sends them. Knows nothing about HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Body = dict[str, Any]

MODEL = "scripted"
_OPENAI_FIELDS = (
    "model messages prompt input instructions stream stream_options temperature top_p max_tokens "
    "max_completion_tokens max_output_tokens n stop seed tools tool_choice response_format text "
    "user store include parallel_tool_calls reasoning_effort truncation"
)


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """One reply of the server; a token count of None is not reported.

    tool_calls: in the shape of a chat message's `tool_calls`.
    token_ids: a text completion gives them as its log-probabilities' tokens, as vLLM does with
        `return_tokens_as_token_ids`.
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


@dataclass(frozen=True, slots=True)
class ReplyShape:
    """How the API of a route writes its replies; `fields` are those of a request that it knows."""

    whole: Callable[[ScriptedReply], Body]
    events: Callable[[ScriptedReply, bool], Iterator[bytes]]
    """Gives server-sent events; the flag says whether the usage shall be among them."""
    error: Callable[[int, str], Body]
    fields: frozenset[str] = frozenset(_OPENAI_FIELDS.split())


def openai_error(status: int, message: str) -> Body:
    """An error of OpenAI's APIs."""
    return {"error": {"message": message, "type": "scripted", "code": status}}


def _chat(reply: ScriptedReply) -> Body:
    message: Body = {"role": "assistant", "content": reply.text}
    if reply.tool_calls:
        message["tool_calls"] = [dict(call) for call in reply.tool_calls]
    choice = {"index": 0, "message": message, **_finish(reply), "logprobs": None}
    return _with_usage(_completion("chat.completion", choice), reply)


def _chat_events(reply: ScriptedReply, include_usage: bool) -> Iterator[bytes]:
    deltas: list[Body] = [{"role": "assistant", "content": word} for word in words_of(reply.text)]
    if reply.tool_calls:
        calls = [{"index": index, **call} for index, call in enumerate(reply.tool_calls)]
        deltas.append({"tool_calls": calls})
    pieces: list[Body] = [{"delta": delta} for delta in deltas]
    return _events("chat.completion.chunk", [*pieces, {"delta": {}}], reply, include_usage)


def _text(reply: ScriptedReply) -> Body:
    choice: Body = {"index": 0, "text": reply.text, **_finish(reply), "logprobs": None}
    if reply.token_ids is not None:
        tokens = [f"token_id:{token_id}" for token_id in reply.token_ids]
        choice["logprobs"] = {"tokens": tokens, "token_logprobs": [0.0] * len(tokens)}
    return _with_usage(_completion("text_completion", choice), reply)


def _text_events(reply: ScriptedReply, include_usage: bool) -> Iterator[bytes]:
    pieces = [{"text": word} for word in (*words_of(reply.text), "")]
    return _events("text_completion", pieces, reply, include_usage)


def _events(
    kind: str, pieces: Sequence[Body], reply: ScriptedReply, include_usage: bool
) -> Iterator[bytes]:
    """One event for each piece of a choice, the last of which ends it."""
    for number, piece in enumerate(pieces, 1):
        end = _finish(reply) if number == len(pieces) else {"finish_reason": None}
        yield _data(_completion(kind, {"index": 0, **piece, **end}))
    if include_usage:
        yield _data(_with_usage({**_completion(kind, {}), "choices": []}, reply))
    yield b"data: [DONE]\n\n"


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


def words_of(text: str) -> list[str]:
    """The text in pieces that add up to it."""
    return [piece + " " for piece in text.split(" ")[:-1]] + text.split(" ")[-1:]


def _data(body: Body) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()


SHAPES: Mapping[str, ReplyShape] = {
    "/v1/chat/completions": ReplyShape(_chat, _chat_events, openai_error),
    "/v1/completions": ReplyShape(_text, _text_events, openai_error),
}
"""The routes of a model, with the shapes of their replies."""
