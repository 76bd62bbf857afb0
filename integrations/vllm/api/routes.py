"""The HTTP routes under /v1/agentkv, each of which forwards one operation to the engine.

The middleware adds them to vLLM's own application under one of our policies, so its API key check,
CORS and metrics apply; under other policies the paths answer vLLM's 404. No state is kept here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentkv.errors import TagError
from agentkv.protocol import JobKey, parse_tags, parse_tool_event

from ..clients import Clients
from .engine_client import (
    EngineLink,
    EngineUnavailableError,
    OperationFailedError,
    SharedAnswers,
    merge_clients,
    merge_explained,
    merge_info,
    merge_job,
    merge_jobs,
    merge_release,
    merge_stats,
    merge_timestamps,
)
from .live import LiveHub, TooManyViewersError

PREFIX = "/v1/agentkv/"
FINISH_SESSION = "/finish_session"
"""`POST /finish_session?session_id=ID` releases a job: trainers so end a trajectory."""

MAX_BODY_BYTES = 8 * 1024 * 1024
"""Holds a command of the largest allowed length with every character escaped, and some room."""

# path below the prefix -> operation of the engine, and the function that merges engines' answers
_READINGS: Mapping[str, tuple[str, Callable[[list[Any]], Any]]] = {
    "info": ("info", merge_info),
    "stats": ("stats", merge_stats),
    "jobs": ("jobs", lambda answers: {"jobs": merge_jobs(answers)}),
}
_READINGS_BY_CLIENT = ("jobs",)
"""Those in which jobs are named: of the client that asks, unless it may see all."""
MAX_EXPLAINED = 10
"""Jobs that one answer explains: 100 kB, made between two steps of the engine."""
EVENTS_AT_ONCE = 50
"""Events that the engine hands over between two of its steps: of the longest texts 150 kB."""
MAX_TIMESTAMPS_BYTES = 8 * 1024 * 1024
"""Default and largest value of `limit`."""
_JOB_ACTIONS = ("tool", "release")
_READ_METHODS = ("GET", "HEAD")
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


class _RefusedError(Exception):
    """Carries the error response for a request that cannot be served."""

    def __init__(self, answer: Response) -> None:
        super().__init__()
        self.answer = answer


def add_routes(app: Starlette, engine: EngineLink, clients: Clients) -> None:
    """Add /v1/agentkv/* to this application; call once."""
    hub, polls = LiveHub(engine), SharedAnswers()

    async def below_prefix(request: Request, client: str) -> Response:
        sees_all = clients.sees_all_jobs(request.scope)
        if _raw_segments(request) == ["live"]:
            _require(request, ("GET",))
            return hub.stream(client, sees_all=sees_all)
        if request.method not in _READ_METHODS:
            return await answer_to(request, client, sees_all)
        question = (client, sees_all, *_raw_segments(request), request.scope["query_string"])
        return await polls.get(question, lambda: answer_to(request, client, sees_all))

    async def answer_to(request: Request, client: str, sees_all: bool) -> Response:
        if _raw_segments(request) == ["clients"] and sees_all:
            _require(request, _READ_METHODS)
            found = merge_clients(await engine.call("clients"))
            named = [{**entry, "client": clients.label(entry["client"])} for entry in found]
            return _answer({"clients": named})
        return await _dispatch(request, engine, client, sees_all=sees_all)

    async def finish_session(request: Request, client: str) -> Response:
        job_id = request.query_params.get("session_id")
        if job_id is None:
            raise TagError("session_id", None, "the id of a job, as a query parameter")
        return await _release(request, engine, client, parse_tags({"job_id": job_id}).job_id or "")

    def answering(handle: Callable[[Request, str], Awaitable[Response]]) -> Any:
        async def answer(request: Request) -> Response:
            try:
                return await handle(request, clients.of(request.scope).name)
            except _RefusedError as refused:
                return refused.answer
            except TagError as error:
                return openai_error(400, str(error), field=error.field)
            except TooManyViewersError as error:
                return openai_error(429, str(error))
            except EngineUnavailableError as error:
                return openai_error(503, str(error))
            except OperationFailedError as error:
                return openai_error(500, str(error))

        return answer

    # A single route, because a job id may contain slashes, which only the raw path tells from
    # separators.
    route = Route(PREFIX + "{rest:path}", answering(below_prefix), methods=list(_METHODS))
    # Starlette's `path` ends at a line end, which a job id may hold as well.
    route.path_regex = re.compile(rf"^{PREFIX}(?P<rest>[\s\S]*)\Z")
    app.router.routes.append(route)
    app.router.routes.append(Route(FINISH_SESSION, answering(finish_session), methods=["POST"]))


async def _dispatch(
    request: Request, engine: EngineLink, client: str, *, sees_all: bool
) -> Response:
    first, *rest = _raw_segments(request)
    if first in _READINGS and not rest:
        _require(request, _READ_METHODS)
        operation, merge = _READINGS[first]
        is_partial = operation in _READINGS_BY_CLIENT and not sees_all
        return _answer(merge(await engine.call(operation, *[client] * is_partial)))
    if first == "timestamps" and not rest:
        _require(request, _READ_METHODS)
        return await _timestamps(request, engine, None if sees_all else client)
    if first == "explain" and not rest:
        _require(request, _READ_METHODS)
        return await _explain(request, engine, None if sees_all else client)
    if first != "jobs" or not any(rest):
        raise _RefusedError(openai_error(404, f"no such path: {request.url.path}"))
    if len(rest) > 1 and rest[-1] in _JOB_ACTIONS:
        _require(request, ("POST",))
        job_id = _job_id(rest[:-1])
        if rest[-1] == "tool":
            return await _report_tool(request, engine, client, job_id)
        return await _release(request, engine, client, job_id)
    _require(request, _READ_METHODS)
    job_id = _job_id(rest)
    answers = await engine.call("job", str(JobKey(client, job_id)), sees_all)
    return _found(job_id, merge_job(answers))


async def _explain(request: Request, engine: EngineLink, client: str | None) -> Response:
    """Return the turns of `?job=`, or of the `?worst=` jobs, and why they missed."""
    job_id = request.query_params.get("job")
    worst = int(_number(request, "worst", 1, most=MAX_EXPLAINED, default=1))
    answers = await engine.call("explain", client, job_id, worst)
    jobs = merge_explained(answers, None if job_id is not None else worst)
    if job_id is not None and not jobs:
        return _found(job_id, None)
    return _answer({"jobs": jobs})


async def _timestamps(request: Request, engine: EngineLink, client: str | None) -> Response:
    """Return the event log of a client's jobs (None: of all), read and encoded in parts.

    `?job=` asks for one job, `?since=` for events later than that many seconds, and `?limit=` ends
    the answer after that many bytes of events: it then says `"truncated": true`.
    """
    job_id = request.query_params.get("job")
    since_s = _number(request, "since", 0.0, most=1e12, default=-1.0)
    limit = _number(request, "limit", 1.0, most=MAX_TIMESTAMPS_BYTES, default=MAX_TIMESTAMPS_BYTES)
    counts: dict[str, int] = {}
    for answer in await engine.call("event_counts", client):
        for key, num_events in answer:
            if job_id is None or JobKey.read(key).own_id == job_id:
                counts[key] = max(num_events, counts.get(key, 0))
    texts: dict[str, list[bytes]] = {}
    num_bytes, is_truncated = 0, False
    for slices in _parts_of(counts):
        if num_bytes >= limit:
            is_truncated = True
            break
        part = merge_timestamps(await engine.call("events", slices, since_s, client))
        for name, events in part["jobs"].items():
            if events:
                encoded = [msgspec.json.encode(event) for event in events]
                texts.setdefault(name, []).extend(encoded)
                num_bytes += sum(map(len, encoded))
    jobs = b",".join(
        b"%s:[%s]" % (msgspec.json.encode(name), b",".join(each)) for name, each in texts.items()
    )
    end = b',"truncated":true' if is_truncated else b""
    return Response(b'{"jobs":{%s}%s}' % (jobs, end), media_type="application/json")


def _parts_of(counts: Mapping[str, int]) -> Iterator[list[tuple[str, int, int]]]:
    """Cut events, given by their number for each job, into slices of EVENTS_AT_ONCE together."""
    part: list[tuple[str, int, int]] = []
    room = EVENTS_AT_ONCE
    for key, num_events in counts.items():
        start = 0
        while start < num_events:
            stop = min(num_events, start + room)
            part.append((key, start, stop))
            room -= stop - start
            start = stop
            if not room:
                yield part
                part, room = [], EVENTS_AT_ONCE
    if part:
        yield part


def _number(request: Request, name: str, least: float, *, most: float, default: float) -> float:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise TagError(name, text, f"a number from {least:g} to {most:g}")
    return number


async def _report_tool(request: Request, engine: EngineLink, client: str, job_id: str) -> Response:
    event = parse_tool_event(await _json_body(request)).cut()
    answers = await engine.call("tool", str(JobKey(client, job_id)), asdict(event))
    return _found(job_id, merge_job(answers))


async def _release(request: Request, engine: EngineLink, client: str, job_id: str) -> Response:
    await _json_body(request, default={})
    answers = await engine.call("release", str(JobKey(client, job_id)))
    return _found(job_id, merge_release(answers))


def _found(job_id: str, answer: dict[str, Any] | None) -> Response:
    if answer is None:
        message = (
            f"unknown job: {job_id!r} (never seen by this server, or over and forgotten); "
            "do not send this again"
        )
        return openai_error(404, message, field="job_id")
    return _answer(answer)


def _answer(content: object) -> Response:
    """Encode an answer in a tenth of JSONResponse's time, in which the loop serves nobody."""
    return Response(msgspec.json.encode(content), media_type="application/json")


def _raw_segments(request: Request) -> list[str]:
    """Return the segments below the prefix, still percent-encoded."""
    raw: bytes | None = request.scope.get("raw_path")
    path = raw.decode("latin-1") if raw is not None else request.scope["path"]
    _, _, below = path.partition(PREFIX)
    return below.split("/")


def _job_id(segments: list[str]) -> str:
    """Return the job id, whose slashes a client may have sent unescaped."""
    job_id = unquote("/".join(segments), errors="surrogateescape")
    return parse_tags({"job_id": job_id}).job_id or ""


def _require(request: Request, allowed: tuple[str, ...]) -> None:
    if request.method not in allowed:
        message = f"{request.method} is not allowed on {request.url.path}; use {allowed[0]}"
        allow = {"Allow": ", ".join(allowed)}
        raise _RefusedError(openai_error(405, message, headers=allow))


async def _json_body(request: Request, *, default: object = None) -> object:
    """Return the parsed body, or `default` (if given) for an empty one."""
    body = await _limited_body(request)
    if not body.strip() and default is not None:
        return default
    try:
        return json.loads(body.decode())
    except (ValueError, RecursionError) as error:
        message = f"body: malformed JSON ({error}); a JSON object is expected"
        raise _RefusedError(openai_error(400, message, field="body")) from None


async def _limited_body(request: Request) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                message = f"body: larger than the {MAX_BODY_BYTES} bytes allowed"
                raise _RefusedError(openai_error(413, message, field="body"))
    except ClientDisconnect:
        raise _RefusedError(
            openai_error(400, "body: the client disconnected before its end")
        ) from None
    return bytes(body)


_TYPES: Mapping[int, str] = {
    400: "BadRequestError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    413: "PayloadTooLargeError",
    429: "TooManyRequestsError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


def openai_error(
    status: int,
    message: str,
    *,
    field: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Return an error in the shape of vLLM's OpenAI routes; `field` names the wrong field."""
    error = {"message": message, "type": _TYPES[status], "param": field, "code": status}
    return JSONResponse({"error": error}, status_code=status, headers=dict(headers or {}))


def anthropic_error(message: str) -> JSONResponse:
    """Return a 400 in the shape of Anthropic's messages route."""
    error = {"type": "invalid_request_error", "message": message}
    return JSONResponse({"type": "error", "error": error}, status_code=400)
