"""The HTTP routes under /v1/agentkv, each of which forwards one operation to the engine.

The middleware adds them to vLLM's own application under one of our policies, so its API key check,
CORS and metrics apply; under other policies the paths answer vLLM's 404. No state is kept here.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentkv.errors import AgentKVServerError, TagError
from agentkv.protocol import JobKey, parse_tags, parse_tool_event

from ..clients import Clients
from .engine_client import (
    JOBS_AT_ONCE,
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

MAX_EXPLAINED = 10
"""Jobs that one answer explains: 100 kB, asked for one by one."""
LISTED_AT_ONCE = 2000
"""Keys of jobs that the engine hands over between two of its steps: about half a millisecond."""
EVENTS_AT_ONCE = 50
"""Events that the engine hands over between two of its steps: of the longest texts 150 kB."""
MAX_TIMESTAMPS_BYTES = 8 * 1024 * 1024
"""Default and largest value of `limit`."""
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

    def answering(answer: Callable[[_Question], Awaitable[Response]]) -> Any:
        async def answer_or_say_why(request: Request) -> Response:
            try:
                return await answer(_Question(request, engine, clients))
            except _RefusedError as refused:
                return refused.answer
            except TagError as error:
                return openai_error(400, str(error), field=error.field)
            except AgentKVServerError as error:
                return openai_error(_STATUS[type(error)], str(error))

        return answer_or_say_why

    async def below_prefix(question: _Question) -> Response:
        if question.segments == ["live"]:
            question.require("GET")
            return hub.stream(question.client, sees_all=question.sees_all)
        if question.request.method not in _READ_METHODS:
            return await question.answer()
        return await polls.get(question.key, question.answer)

    # A single route, because a job id may contain slashes, which only the raw path tells from
    # separators.
    route = Route(PREFIX + "{rest:path}", answering(below_prefix), methods=list(_METHODS))
    # Starlette's `path` ends at a line end, which a job id may hold as well.
    route.path_regex = re.compile(rf"^{PREFIX}(?P<rest>[\s\S]*)\Z")
    app.router.routes.append(route)
    finish = answering(_Question.finish_session)
    app.router.routes.append(Route(FINISH_SESSION, finish, methods=["POST"]))


class _Question:
    """A request of one of our routes: whose it is, whose jobs it may see, and its answer."""

    def __init__(self, request: Request, engine: EngineLink, clients: Clients) -> None:
        self.request = request
        self.client = clients.of(request.scope)
        self.sees_all = clients.sees_all_jobs(request.scope)
        self.segments = _raw_segments(request)
        read = (request.query_params.get(name) for name in _PARAMETERS.get(self.segments[0], ()))
        self.key = (self.client, self.sees_all, *self.segments, *read)
        """Equal for two requests that get the same answer."""
        self._viewer = None if self.sees_all else self.client
        self._engine = engine
        self._clients = clients

    def require(self, *allowed: str) -> None:
        """Refuse a request whose method is not one of these."""
        request = self.request
        if request.method not in allowed:
            message = f"{request.method} is not allowed on {request.url.path}; use {allowed[0]}"
            allow = {"Allow": ", ".join(allowed)}
            raise _RefusedError(openai_error(405, message, headers=allow))

    async def answer(self) -> Response:
        """Answer by the path below the prefix; only who sees all jobs may ask for `clients`."""
        first, *rest = self.segments
        if first in _READINGS and not rest and (first != "clients" or self.sees_all):
            self.require(*_READ_METHODS)
            return await _READINGS[first](self)
        if first != "jobs" or not any(rest):
            message = f"no such path: {self.request.url.path}"
            raise _RefusedError(openai_error(404, message))
        if len(rest) > 1 and rest[-1] in ("tool", "release"):
            self.require("POST")
            act = self._report_tool if rest[-1] == "tool" else self._release
            return await act(_job_id(rest[:-1]))
        self.require(*_READ_METHODS)
        job_id = _job_id(rest)
        key = str(JobKey(self.client, job_id))
        return _found(job_id, merge_job(await self._read("job", key, self.sees_all)))

    async def finish_session(self) -> Response:
        job_id = self.request.query_params.get("session_id")
        if job_id is None:
            raise TagError("session_id", None, "the id of a job, as a query parameter")
        return await self._release(parse_tags({"job_id": job_id}).job_id or "")

    async def _info(self) -> Response:
        return _answer(merge_info(await self._read("info")))

    async def _stats(self) -> Response:
        return _answer(merge_stats(await self._read("stats")))

    async def _jobs(self) -> Response:
        keys = await self._listed("job_keys")
        return _answer({"jobs": merge_jobs(await self._described("jobs", keys, JOBS_AT_ONCE))})

    async def _named_clients(self) -> Response:
        found = merge_clients(await self._read("clients"))
        label = self._clients.label
        return _answer({"clients": [{**each, "client": label(each["client"])} for each in found]})

    async def _explain(self) -> Response:
        """Return the turns of `?job=`, or of the `?worst=` jobs, and why they missed."""
        job_id = self.request.query_params.get("job")
        if job_id is not None:
            parse_tags({"job_id": job_id})
        worst = int(self._number("worst", 1, most=MAX_EXPLAINED, default=1))
        asked = await self._read("keys_to_explain", self._viewer, job_id, worst)
        answers = await self._described("explain", [*itertools.chain(*asked)], 1)
        jobs = merge_explained(answers, None if job_id is not None else worst)
        return _answer({"jobs": jobs}) if jobs or job_id is None else _found(job_id, None)

    async def _timestamps(self) -> Response:
        """Return the event log of the jobs that the client sees, read and encoded in parts.

        `?job=` asks for one job, `?since=` for events later than that many seconds, and `?limit=`
        ends the answer after that many bytes of events: it then says `"truncated": true`.
        """
        job_id = self.request.query_params.get("job")
        since_s = self._number("since", 0.0, most=1e12, default=-1.0)
        limit = self._number("limit", 1.0, most=MAX_TIMESTAMPS_BYTES, default=MAX_TIMESTAMPS_BYTES)
        counts: dict[str, int] = {}
        for key, num_events in await self._listed("event_counts"):
            if job_id is None or JobKey.read(key).own_id == job_id:
                counts[key] = max(num_events, counts.get(key, 0))
        texts: dict[str, list[bytes]] = {}
        num_bytes, is_truncated = 0, False
        for slices in _parts_of(counts):
            if num_bytes >= limit:
                is_truncated = True
                break
            answers = await self._read("events", slices, since_s, self._viewer)
            for name, events in merge_timestamps(answers)["jobs"].items():
                if events:
                    encoded = [msgspec.json.encode(event) for event in events]
                    texts.setdefault(name, []).extend(encoded)
                    num_bytes += sum(map(len, encoded))
        jobs = b",".join(
            b"%s:[%s]" % (msgspec.json.encode(name), b",".join(each))
            for name, each in texts.items()
        )
        end = b',"truncated":true' if is_truncated else b""
        return Response(b'{"jobs":{%s}%s}' % (jobs, end), media_type="application/json")

    async def _report_tool(self, job_id: str) -> Response:
        event = parse_tool_event(await _json_body(self.request)).cut()
        answers = await self._hand_over(job_id, "tool", asdict(event))
        return _ACCEPTED if answers is None else _found(job_id, merge_job(answers))

    async def _release(self, job_id: str) -> Response:
        await _json_body(self.request, default={})
        answers = await self._hand_over(job_id, "release")
        return _ACCEPTED if answers is None else _found(job_id, merge_release(answers))

    async def _read(self, operation: str, *args: Any) -> list[Any]:
        return await self._engine.read(self.client, operation, *args)

    async def _listed(self, operation: str) -> list[Any]:
        """What all engines list of the jobs that the client sees, the last active last."""
        found: list[Any] = []
        for start in itertools.count(0, LISTED_AT_ONCE):
            answers = await self._read(operation, self._viewer, start, LISTED_AT_ONCE)
            found += itertools.chain.from_iterable(answers)
            if max(map(len, answers)) < LISTED_AT_ONCE:
                break
        return found[::-1]

    async def _described(self, operation: str, found: list[str], at_once: int) -> list[list[Any]]:
        """What each engine says of the jobs with these keys, asked for `at_once` at a time."""
        keys = [*dict.fromkeys(found)]
        starts = range(0, max(1, len(keys)), at_once)
        parts = [await self._read(operation, self._viewer, keys[i : i + at_once]) for i in starts]
        return [[*itertools.chain.from_iterable(each)] for each in zip(*parts, strict=True)]

    async def _hand_over(self, job_id: str, operation: str, *args: Any) -> list[Any] | None:
        return await self._engine.hand_over(operation, str(JobKey(self.client, job_id)), *args)

    def _number(self, name: str, least: float, *, most: float, default: float) -> float:
        text = self.request.query_params.get(name)
        if text is None:
            return default
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not least <= number <= most:
            raise TagError(name, text, f"a number from {least:g} to {most:g}")
        return number


_READINGS: Mapping[str, Callable[[_Question], Awaitable[Response]]] = {
    "info": _Question._info,
    "stats": _Question._stats,
    "jobs": _Question._jobs,
    "clients": _Question._named_clients,
    "explain": _Question._explain,
    "timestamps": _Question._timestamps,
}
"""Paths below the prefix at which nothing is changed."""
_PARAMETERS: Mapping[str, Sequence[str]] = {
    "explain": ("job", "worst"),
    "timestamps": ("job", "since", "limit"),
}
"""The query parameters that they read."""


def _parts_of(counts: Mapping[str, int]) -> Iterator[list[tuple[str, int, int]]]:
    """Cut events, given by their number for each job, into slices of EVENTS_AT_ONCE together."""
    events = ((key, index) for key, num_events in counts.items() for index in range(num_events))
    while part := list(itertools.islice(events, EVENTS_AT_ONCE)):
        first, last = dict(reversed(part)), dict(part)
        yield [(key, first[key], last[key] + 1) for key in last]


_ACCEPTED = JSONResponse({"accepted": True}, status_code=202)
"""Of feedback that reached the engine in the middle of a step."""


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


async def _json_body(request: Request, *, default: object = None) -> object:
    """Return the parsed body, or `default` (if given) for an empty one."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                message = f"body: larger than the {MAX_BODY_BYTES} bytes allowed"
                raise _RefusedError(openai_error(413, message, field="body"))
        return default if default is not None and not body.strip() else json.loads(body.decode())
    except ClientDisconnect:
        message = "body: the client disconnected before its end"
    except (ValueError, RecursionError) as error:
        message = f"body: malformed JSON ({error}); a JSON object is expected"
    raise _RefusedError(openai_error(400, message, field="body"))


_STATUS: Mapping[type[AgentKVServerError], int] = {
    TooManyViewersError: 429,
    OperationFailedError: 500,
    EngineUnavailableError: 503,
}
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
