"""One request as a turn of a job: tagged, numbered, timed, in any library that sends it.

`sdk_clients` and `http_clients` say how the requests of their libraries are read and tagged;
`tagging` puts that around the library's method. A request that runs inside of another tagged one,
as an SDK's runs over httpx, is the same turn.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from typing import Any

from agentkv.client.job import Job, job_covering
from agentkv.client.ledger import NumberedTurn
from agentkv.client.patches import Method, Patch
from agentkv.client.replies import OnComplete, Usage, when_complete
from agentkv.client.server import JobLink
from agentkv.errors import AgentKVServerError
from agentkv.protocol import OUR_HEADERS, SESSION_HEADER
from agentkv.protocol.foreign import fields_from_headers
from agentkv.tracing import JobTrace, RequestShape, Span

logger = logging.getLogger(__name__)

JobFinder = Callable[[Any], Job[Any] | None]
"""Returns the job that a request of a client belongs to, if any."""

_is_under_way: ContextVar[bool] = ContextVar("agentkv_call_under_way", default=False)
_has_logged_failure = False


class TaggedCall:
    """A request about to be sent: `begin` before, then `fail` or `complete` after sending.

    `begin` sets `headers` and `fields`, the tags to send with it; a subclass puts them into the
    arguments of its library's method.
    """

    takes_fields = True
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}

    def __init__(self, job: Job[Any], link: JobLink) -> None:
        self.job = job
        self.link = link
        self.headers: Mapping[str, str] = {}
        self.fields: Mapping[str, object] = {}
        self._turn: NumberedTurn | None = None
        self._span: Span | None = None
        self._token: Token[bool] | None = None

    @property
    def must_ask(self) -> bool:
        """True if the server has to be asked for the plugin before this request can be tagged."""
        is_needed = self.takes_fields or self.job.on_missing_server == "raise"
        return is_needed and self.link.server.is_unasked

    def begin(self) -> None:
        """Open the turn and tag the request: with headers, and a server with the plugin by fields.

        Without the plugin, warn or raise AgentKVServerError, as the session wants.
        """
        job, server = self.job, self.link.server
        if server.missing is not None:
            if job.on_missing_server == "raise":
                server.require_plugin()
            if job.on_missing_server == "warn":
                server.warn_once()
        self._turn = job.ledger.begin()
        try:
            tags = job.tags(self._turn)
            if job.has_headers:
                self.headers = {**tags.as_headers(), **job.routing_headers}
            if job.trace is not None:
                self._open_span(job.trace, self._turn)
            if self.takes_fields and server.has_plugin:
                self.fields = tags.as_fields()
            self.tag()
        except BaseException as error:
            self.close_unanswered(error)
            raise
        job.links[server] = self.link
        self._token = _is_under_way.set(True)

    def _open_span(self, trace: JobTrace, turn: NumberedTurn) -> None:
        operation, model = self.describe()
        server = self.link.server
        shape = RequestShape(operation, model, self.link.root_url, bool(server.has_plugin))
        span = self._span = trace.turn(turn.number, shape)
        if span is not None and self.job.has_headers:
            self.headers = {**self.headers, **span.headers}

    def describe(self) -> tuple[str, str | None]:
        """The kind of request, as OpenTelemetry names it, and the model that it asks for."""
        return "chat", None

    def tag(self) -> None:
        """Put `headers` and `fields` into the request."""

    def extra_args(self, own: Mapping[str, object] | None) -> dict[str, object]:
        """The `extra_args` of vLLM's sampling parameters: the caller's own, and the fields, with
        flags as the numbers that vLLM's own requests have there."""
        fields = {n: int(v) if isinstance(v, bool) else v for n, v in self.fields.items()}
        return {**(own or {}), **fields}

    @property
    def has_begun(self) -> bool:
        """True after `begin`, unless that failed."""
        return self._token is not None

    def __enter__(self) -> None:
        """Send the request inside of it: an exception closes the turn."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Close the turn of a request that raised an error."""
        self.end_sending()
        self.close_unanswered(error)

    def complete(self, reply: Any) -> None:
        """Close the turn when its reply has arrived, now or later; the reply stays unchanged."""
        self.end_sending()
        try:
            self.when_complete(reply, self.close)
        except Exception:
            log_failure("could not read a reply")

    def when_complete(self, reply: Any, on_complete: OnComplete) -> None:
        """Call `on_complete` once the reply has arrived."""
        when_complete(reply, on_complete)

    def end_sending(self) -> None:
        """Note that the request was sent; a server never asked for the plugin is asked now."""
        assert self._token is not None
        with suppress(ValueError):  # a task whose loop has stopped is closed in another context
            _is_under_way.reset(self._token)
        if self._span is not None:
            self._span.leave()
        self.link.server.ask_in_background(self.link)

    def close(self, usage: Usage | None, ended_at_s: float) -> None:
        """Close the turn: the model answered, unless the engine gave it up."""
        if usage is not None and usage.is_aborted:
            self.close_unanswered("aborted")
            return
        assert self._turn is not None
        self.job.ledger.finish(self._turn, usage, ended_at_s=ended_at_s)
        if self._span is not None:
            self._span.end(usage=usage)
        if self.job.is_over:  # this turn was pinned after the job's release
            self.job.release()

    def close_unanswered(self, error: object) -> None:
        """Close the turn: there was no answer but `error`, an exception or an HTTP status.

        A retry has the same number.
        """
        assert self._turn is not None
        self.job.ledger.fail(self._turn)
        if self._span is not None:
            self._span.leave()
            self._span.end(error)


Prepare = Callable[..., TaggedCall | None]
"""Makes the call of `(job, client, *args, **kwargs)`, or None if the request is no turn."""


def tagging(original: Method, find_job: JobFinder, prepare: Prepare) -> Method:
    """A library's method that sends requests, sync or async, with its calls made turns of a job."""

    def turn_of(client: Any, args: Any, kwargs: Any) -> TaggedCall | None:
        job = None if _is_under_way.get() else find_job(client)
        return None if job is None else prepare(job, client, *args, **kwargs)

    @functools.wraps(original)
    def send(client: Any, *args: Any, **kwargs: Any) -> Any:
        call = None
        with _untouched_on_failure():
            call = turn_of(client, args, kwargs)
            if call is not None:
                if call.must_ask:
                    call.link.server.ask(call.link.transport)
                call.begin()
        if call is None or not call.has_begun:
            return original(client, *args, **kwargs)
        with call:
            reply = original(client, *call.args, **call.kwargs)
        call.complete(reply)
        return reply

    @functools.wraps(original)
    async def send_async(client: Any, *args: Any, **kwargs: Any) -> Any:
        call = None
        with _untouched_on_failure():
            call = turn_of(client, args, kwargs)
            if call is not None:
                if call.must_ask:
                    await call.link.server.ask_async(call.link.transport)
                call.begin()
        if call is None or not call.has_begun:
            return await original(client, *args, **kwargs)
        with call:
            reply = await original(client, *call.args, **call.kwargs)
        call.complete(reply)
        return reply

    return send_async if inspect.iscoroutinefunction(original) else send


def tagging_patch(target: str, prepare: Prepare) -> Patch:
    """The patch of a library's method that makes every client tag its requests."""

    def wrap(original: Method, patch: Patch) -> Method:
        def find_job(client: Any) -> Job[Any] | None:
            return job_covering(client) if patch.is_active else None

        return tagging(original, find_job, prepare)

    return Patch(target, wrap)


@contextmanager
def _untouched_on_failure() -> Iterator[None]:
    """Pass over an error of ours, so that the request goes out as the caller made it."""
    try:
        yield
    except AgentKVServerError:
        raise
    except Exception:
        log_failure("could not tag a request, which goes out untouched")


def is_tagged_by_hand(job: Job[Any], body: Any, headers: Mapping[str, str]) -> bool:
    """True if a request was tagged by hand: it names a job in any form that the server reads.

    One with this job's own id as `X-Session-ID`, as trainers send it, is a turn of this job all the
    same, even if the program behind it sends ids of its own. The names of the headers are in lower
    case.
    """
    own_id = job.routing_headers.get(SESSION_HEADER)
    if own_id is not None and headers.get(SESSION_HEADER.lower()) == own_id:
        headers = {name: headers[name] for name in headers if name.startswith(OUR_HEADERS)}
    if isinstance(body, Mapping):
        for holder in (body, body.get("extra_body"), body.get("vllm_xargs")):
            if isinstance(holder, Mapping) and ("job_id" in holder or "session_id" in holder):
                return True
    return bool(headers) and "job_id" in fields_from_headers(headers)


def lower_case(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with names in lower case."""
    return {name.lower(): value for name, value in headers.items()}


def log_failure(what: str) -> None:
    """Log the exception being handled, once per process: ours must not break the agent."""
    global _has_logged_failure
    if not _has_logged_failure:
        _has_logged_failure = True
        logger.exception("agentkv %s; the agent is not affected", what)
