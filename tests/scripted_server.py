"""A fake of vLLM's OpenAI API with scripted replies, with our routes or without.

Real HTTP on 127.0.0.1, one thread per connection, so that clients, time-outs and retries behave as
they do against vLLM. It records the requests that arrive, and pins nothing.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import unquote

from agentkv.protocol import TAG_FIELDS, WIRE_VERSION, header_fields, read_tags
from agentkv.protocol.foreign import add_foreign
from tests.http_front import MALFORMED, Answer, HttpFront

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
    delay_s: how long the server waits before it answers.
    cut_after_events: number of events after which a stream breaks off, as when a server dies.
    """

    text: str = "ok"
    prompt_tokens: int | None = 100
    cached_tokens: int | None = 80
    output_tokens: int = 5
    tool_calls: Sequence[Mapping[str, Any]] = ()
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
    return {"finish_reason": "tool_calls" if reply.tool_calls else "stop"}


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


_TOKENS = (
    *("prompt_tokens", "hit_tokens", "output_tokens"),
    *("later_prompt_tokens", "later_hit_tokens"),
)
_JOB_ROUTE = re.compile(r"/v1/agentkv/jobs/(.+)/(tool|release)")
ReplyFunction = Callable[[Mapping[str, Any]], ScriptedReply | None]


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request as it arrived; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any

    @property
    def route(self) -> str:
        """The path without its query."""
        return self.path.partition("?")[0]

    @property
    def tags(self) -> dict[str, Any]:
        """The tags at the top level of the body, or in the sampling parameters where it has
        some, then those of the headers."""
        body = self.body if isinstance(self.body, dict) else {}
        if "sampling_params" in body:
            body = body["sampling_params"].get("extra_args") or {}
        ours = header_fields(self.headers)
        foreign = add_foreign(read_tags(ours, []), (), self.headers).as_fields()
        tags = {**foreign, **ours, **body}
        return {name: tags[name] for name in TAG_FIELDS if name in tags}


class ScriptedServer:
    """Sends `replies` in turn, and the last one again and again; use it as a context manager.

    replies: or a function that is given the body of each request; None is answered with 400.
    model: a name that `/v1/models` lists; without one the server lists no models.
    has_plugin: serve `/v1/agentkv/...`; otherwise these are 404, as on a stock server.
    is_strict: answer 400 to unknown body fields, as hosted endpoints do.
    api_key: answer 401 to requests without it as their bearer token.
    info_delay_s: how long `/v1/agentkv/info` takes.
    info: fields that replace those of `/v1/agentkv/info`.

    It answers chat and text completions; a subclass may add routes to `shapes`.
    """

    shapes: Mapping[str, ReplyShape] = SHAPES

    def __init__(
        self,
        replies: Sequence[str | ScriptedReply] | ReplyFunction = ("ok",),
        *,
        model: str | None = None,
        has_plugin: bool = True,
        is_strict: bool = False,
        api_key: str | None = None,
        info_delay_s: float = 0.0,
        info: Mapping[str, object] | None = None,
    ) -> None:
        self.has_plugin = has_plugin
        self.model = model
        self._replies = replies
        self._is_strict = is_strict
        self._api_key = api_key
        self._info_delay_s = info_delay_s
        self._info = {"wire_version": WIRE_VERSION, "policy": "scripted", **(info or {})}
        self._arrived = threading.Condition()
        self._requests: list[RecordedRequest] = []
        self._failures: list[int] = []
        self._num_played = 0
        self._tokens: dict[object, Counter[str]] = {}
        self._stopping = threading.Event()
        self._front = HttpFront(self._answer)

    @property
    def root_url(self) -> str:
        """`http://127.0.0.1:PORT`."""
        return self._front.url

    @property
    def base_url(self) -> str:
        """The `base_url` for an OpenAI client."""
        return f"{self.root_url}/v1"

    @property
    def requests(self) -> list[RecordedRequest]:
        """Everything that arrived, in order."""
        with self._arrived:
            return list(self._requests)

    @property
    def turns(self) -> list[RecordedRequest]:
        """The requests for a reply of the model, failed ones included."""
        return [request for request in self.requests if request.route in self.shapes]

    @property
    def tool_events(self) -> list[tuple[str, dict[str, Any]]]:
        """The tool events that arrived: job id and body."""
        return [(job_id, request.body) for job_id, request in self._job_calls("tool")]

    @property
    def released(self) -> list[str]:
        """The job ids that were released, in order."""
        return [job_id for job_id, _ in self._job_calls("release")]

    def fail_next(self, *statuses: int) -> None:
        """Answer the next requests for a reply with these HTTP statuses, one each."""
        self._failures.extend(statuses)

    def wait_for(
        self, condition: Callable[[ScriptedServer], object], timeout_s: float = 10
    ) -> None:
        """Wait until `condition(server)` is true; AssertionError after `timeout_s`.

        For requests sent in the background: `server.wait_for(lambda server: server.released)`.
        """
        with self._arrived:
            is_met = self._arrived.wait_for(lambda: condition(self), timeout_s)
        paths = [request.path for request in self.requests]
        assert is_met, f"condition not met in {timeout_s} s; arrived: {paths}"

    def start(self) -> Self:
        """Begin to serve; `with` calls it."""
        self._front.start()
        return self

    def stop(self) -> None:
        """Stop at once and cut all connections; later requests are refused."""
        self._stopping.set()
        self._front.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _job_calls(self, action: str) -> Iterator[tuple[str, RecordedRequest]]:
        for request in self.requests:
            called = _JOB_ROUTE.fullmatch(request.path)
            if called is not None and called[2] == action:
                yield unquote(called[1]), request

    def _answer(self, method: str, path: str, headers: Mapping[str, str], body: Any) -> Answer:
        request = RecordedRequest(method, path, headers, body)
        route = request.route
        if body is MALFORMED:
            return self._error(400, "malformed JSON", route)
        with self._arrived:
            self._requests.append(request)
            self._arrived.notify_all()
        if self._api_key is not None and headers.get("authorization") != f"Bearer {self._api_key}":
            return self._error(401, "wrong or missing API key", route)
        if route in self.shapes and method == "POST":
            return self._play(request)
        if route == "/v1/models" and self.model is not None:
            return Answer(200, {"object": "list", "data": [{"id": self.model, "object": "model"}]})
        if route == "/health":
            return Answer(200, {})
        if route.startswith("/v1/agentkv/") and self.has_plugin:
            return self._answer_agentkv(method, route)
        return self._error(404, "Not Found")

    def _answer_agentkv(self, method: str, path: str) -> Answer:
        if (method, path) == ("GET", "/v1/agentkv/info"):
            self._stopping.wait(self._info_delay_s)
            return Answer(200, self._info)
        called = _JOB_ROUTE.fullmatch(path)
        if method != "POST" or called is None:
            return self._error(404, "Not Found")
        job_id = unquote(called[1])
        is_known = any(request.tags.get("job_id") == job_id for request in self.turns)
        if not is_known:
            return self._error(404, "unknown job")
        more = {"expected_tokens": 0, "recomputed_tokens": {"diverged": 0}}
        tokens = {**dict.fromkeys(_TOKENS, 0), **self._tokens.get(job_id, {}), **more}
        return Answer(200, {"job_id": job_id, "tokens": tokens})

    def _play(self, request: RecordedRequest) -> Answer:
        path, shape = request.route, self.shapes[request.route]
        with self._arrived:
            if self._failures:
                return self._error(self._failures.pop(0), "scripted failure", path)
            unknown = [name for name in request.body if name not in shape.fields]
            if self._is_strict and unknown:
                return self._error(400, f"unknown field: {unknown[0]}", path)
            if not callable(self._replies):
                played: str | ScriptedReply | None
                played = self._replies[min(self._num_played, len(self._replies) - 1)]
                self._num_played += 1
        if callable(self._replies):
            played = self._replies(request.body)
        if played is None:
            return self._error(400, "there is no reply to this request", path)
        reply = played if isinstance(played, ScriptedReply) else ScriptedReply(played)
        with self._arrived:
            known = self._tokens.setdefault(request.tags.get("job_id"), Counter())
            counts = (reply.prompt_tokens or 0, reply.cached_tokens or 0, reply.output_tokens)
            later = counts[:2] if known else (0, 0)
            known.update(dict(zip(_TOKENS, (*counts, *later), strict=True)))
        self._stopping.wait(reply.delay_s)
        if not request.body.get("stream"):
            return Answer(200, shape.whole(reply))
        include_usage = bool((request.body.get("stream_options") or {}).get("include_usage"))
        events = shape.events(reply, include_usage)
        return Answer(200, events, cut_after_events=reply.cut_after_events)

    def _error(self, status: int, message: str, route: str = "") -> Answer:
        """An error in the shape that the API of a route uses."""
        shape = self.shapes.get(route)
        return Answer(status, (shape.error if shape else openai_error)(status, message))
