"""Answers the HTTP routes under /v1/agentkv, each by one operation of the engine.

The middleware adds them to vLLM's own application under one of our policies, so its API key check,
CORS and metrics apply; under other policies the paths answer vLLM's 404. No state is kept here.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Awaitable, Callable, Mapping
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
    merge_clients,
    merge_explained,
    merge_info,
    merge_job,
    merge_jobs,
    merge_stats,
)
from .live import LiveHub, TooManyViewersError

PREFIX = "/v1/agentkv/"
FINISH_SESSION = "/finish_session"
"""`POST /finish_session?session_id=ID` releases a job: trainers so end a trajectory."""

MAX_EXPLAINED = 10
"""Jobs that one answer explains: 100 kB, asked for one by one."""
KEYS_AT_ONCE = 2000
"""Keys of jobs that the engine hands over between two of its steps: about half a millisecond."""
MAX_TIMESTAMPS_BYTES = 8 * 1024 * 1024
"""Of events in one answer."""
_READ_METHODS = ("GET", "HEAD")
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


class _RefusedError(Exception):
    """Carries the error response for a request that cannot be served."""

    def __init__(self, answer: Response) -> None:
        super().__init__()
        self.answer = answer


def add_routes(app: Starlette, engine: EngineLink, clients: Clients) -> None:
    """Add /v1/agentkv/* to this application; call once."""
    hub = LiveHub(engine)

    def answering(answer: Callable[[_Question], Awaitable[Response]]) -> Any:
        async def answer_or_say_why(request: Request) -> Response:
            try:
                return await answer(_Question(request, engine, clients, hub))
            except _RefusedError as refused:
                return refused.answer
            except TagError as error:
                return openai_error(400, str(error), field=error.field)
            except AgentKVServerError as error:
                return openai_error(_STATUS[type(error)], str(error))

        return answer_or_say_why

    # A single route, because a job id may contain slashes, which only the raw path tells from
    # separators.
    route = Route(PREFIX + "{rest:path}", answering(_Question.answer), methods=list(_METHODS))
    # Starlette's `path` ends at a line end, which a job id may hold as well.
    route.path_regex = re.compile(rf"^{PREFIX}(?P<rest>[\s\S]*)\Z")
    finish = Route(FINISH_SESSION, answering(_Question.finish_session), methods=["POST"])
    app.router.routes += [route, finish]


class _Question:
    """Answers a request of one of our routes, by whose it is and whose jobs it may see."""

    def __init__(
        self, request: Request, engine: EngineLink, clients: Clients, hub: LiveHub
    ) -> None:
        self._request = request
        self._client = clients.of(request.scope)
        self._sees_all = clients.sees_all_jobs(request.scope)
        self._viewer = None if self._sees_all else self._client
        self._engine = engine
        self._clients = clients
        self._hub = hub

    async def answer(self) -> Response:
        """Answer by the path below the prefix; only who sees all jobs may ask for `clients`."""
        first, *rest = _raw_segments(self._request)
        if first in _READINGS and not rest and (first != "clients" or self._sees_all):
            self._require(*_READ_METHODS)
            return await _READINGS[first](self)
        if first != "jobs" or not any(rest):
            message = f"no such path: {self._request.url.path}"
            raise _RefusedError(openai_error(404, message))
        if len(rest) > 1 and rest[-1] in ("tool", "release"):
            self._require("POST")
            act = self._report_tool if rest[-1] == "tool" else self._release
            return await act(_job_id(rest[:-1]))
        self._require(*_READ_METHODS)
        job_id = _job_id(rest)
        key = str(JobKey(self._client, job_id))
        return _found(job_id, merge_job(await self._read("job", key, self._sees_all)))

    async def finish_session(self) -> Response:
        job_id = self._request.query_params.get("session_id")
        if job_id is None:
            raise TagError("session_id", None, "the id of a job, as a query parameter")
        return await self._release(parse_tags({"job_id": job_id}).job_id or "")

    async def _info(self) -> Response:
        return _answer(merge_info(await self._read("info")))

    async def _stats(self) -> Response:
        return _answer(merge_stats(await self._read("stats")))

    async def _live(self) -> Response:
        self._require("GET")
        return self._hub.stream(self._client, sees_all=self._sees_all)

    async def _jobs(self) -> Response:
        keys: list[str] = []
        for start in itertools.count(0, KEYS_AT_ONCE):
            answers = await self._read("job_keys", self._viewer, start, KEYS_AT_ONCE)
            keys += itertools.chain.from_iterable(answers)
            if max(map(len, answers)) < KEYS_AT_ONCE:
                break
        return _answer({"jobs": merge_jobs(await self._described("jobs", keys, JOBS_AT_ONCE))})

    async def _named_clients(self) -> Response:
        found = merge_clients(await self._read("clients"))
        label = self._clients.label
        return _answer({"clients": [{**each, "client": label(each["client"])} for each in found]})

    async def _explain(self) -> Response:
        """Return the turns of `?job=`, or of the `?worst=` jobs, and why they missed."""
        job_id = self._request.query_params.get("job")
        if job_id is not None:
            parse_tags({"job_id": job_id})
        text = self._request.query_params.get("worst", "1")
        if not (text.isdecimal() and 1 <= int(text) <= MAX_EXPLAINED):
            raise TagError("worst", text, f"a number from 1 to {MAX_EXPLAINED}")
        worst = int(text)
        asked = await self._read("keys_to_explain", self._viewer, job_id, worst)
        answers = await self._described("explain", [*itertools.chain(*asked)], 1)
        jobs = merge_explained(answers, None if job_id is not None else worst)
        return _answer({"jobs": jobs}) if jobs or job_id is None else _found(job_id, None)

    async def _timestamps(self) -> Response:
        """Return the events of `?job=`, or of all jobs that the client sees, read in parts.

        The answer ends after MAX_TIMESTAMPS_BYTES, and then says `"truncated": true`.
        """
        job_id = self._request.query_params.get("job")
        jobs: dict[str, list[bytes]] = {}
        places: dict[str, int | None] = {}
        num_bytes, has_more = 0, True
        while has_more and num_bytes < MAX_TIMESTAMPS_BYTES:
            answers = await self._read("events", self._viewer, places, job_id)
            for rank, answer in enumerate(answers):
                places[answer["engine"]] = answer["next"]
                # times count from each engine's own start
                of_engine = {} if len(answers) == 1 else {"engine": rank}
                for name, event in answer["events"]:
                    encoded = msgspec.json.encode({**event, **of_engine})
                    jobs.setdefault(name, []).append(encoded)
                    num_bytes += len(encoded)
            has_more = any(place is not None for place in places.values())
        texts = (
            b"%s:[%s]" % (msgspec.json.encode(name), b",".join(each)) for name, each in jobs.items()
        )
        end = b',"truncated":true' if has_more else b""
        text = b'{"jobs":{%s}%s}' % (b",".join(texts), end)
        return Response(text, media_type="application/json")

    async def _report_tool(self, job_id: str) -> Response:
        event = parse_tool_event(await _json_body(self._request)).cut()
        return await self._hand_over(job_id, "tool", asdict(event))

    async def _release(self, job_id: str) -> Response:
        await _json_body(self._request, default={})
        return await self._hand_over(job_id, "release")

    async def _hand_over(self, job_id: str, operation: str, *args: Any) -> Response:
        key = str(JobKey(self._client, job_id))
        answers = await self._engine.hand_over(operation, key, *args)
        return _ACCEPTED if answers is None else _found(job_id, merge_job(answers))

    async def _read(self, operation: str, *args: Any) -> list[Any]:
        return await self._engine.read(self._client, operation, *args)

    async def _described(self, operation: str, found: list[str], at_once: int) -> list[list[Any]]:
        """Return what each engine says of the jobs with these keys, asked `at_once` at a time."""
        keys = [*dict.fromkeys(found)]
        starts = range(0, max(1, len(keys)), at_once)
        parts = [await self._read(operation, self._viewer, keys[i : i + at_once]) for i in starts]
        return [[*itertools.chain.from_iterable(each)] for each in zip(*parts, strict=True)]

    def _require(self, *allowed: str) -> None:
        """Refuse a request whose method is not one of these."""
        request = self._request
        if request.method not in allowed:
            message = f"{request.method} is not allowed on {request.url.path}; use {allowed[0]}"
            allow = {"Allow": ", ".join(allowed)}
            raise _RefusedError(openai_error(405, message, headers=allow))


_READINGS: Mapping[str, Callable[[_Question], Awaitable[Response]]] = {
    "info": _Question._info,
    "stats": _Question._stats,
    "jobs": _Question._jobs,
    "clients": _Question._named_clients,
    "explain": _Question._explain,
    "timestamps": _Question._timestamps,
    "live": _Question._live,
}
"""Paths below the prefix at which nothing is changed."""

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
    try:
        body = await request.body()
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
