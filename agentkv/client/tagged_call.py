"""One request of the OpenAI SDK made as a turn of a job: tagged, numbered, timed.

Works on the SDK's `options` object, the same in its versions 2 and 3, before the SDK turns it into
HTTP and retries it: a retry carries the same turn. Whatever goes wrong in here is logged once and
the request goes out as if agentkv were not there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from agentkv.client.job import Job
from agentkv.client.ledger import OpenTurn
from agentkv.client.replies import Usage, read_usage, when_complete
from agentkv.client.server import KnownServer, known_server
from agentkv.errors import AgentKVServerError
from agentkv.protocol import fields_from_headers

logger = logging.getLogger(__name__)

TAGGED_PATHS = frozenset({"/chat/completions", "/completions", "/responses"})

# True while a tagged request is under way: the SDK's methods may be wrapped twice around it, by
# job.client and by the instrumented class, and it is one turn.
_is_under_way: ContextVar[bool] = ContextVar("agentkv_call_under_way", default=False)
_has_logged_failure = False


class TaggedCall:
    """A request about to be sent: a context manager around the sending, then `read` the reply."""

    def __init__(self, job: Job[Any], server: KnownServer, options: Any) -> None:
        self.options = options
        self.server = server
        self._job = job
        self._turn: OpenTurn | None = None
        self._has_arrived = False
        self._usage: Usage | None = None

    def check_server(self) -> None:
        """Once the server was asked: warn or raise, as the session wants, if it has no plugin."""
        server = self.server
        if server.has_plugin:
            return
        if self._job.on_missing_server == "raise":
            server.require_plugin()
        if self._job.on_missing_server == "warn":
            server.warn_once()
        server.ask_again_if_due()

    def __enter__(self) -> None:
        self._turn = turn = self._job.ledger.begin()
        with _agent_never_breaks():
            self._watch_parser()
        if self.server.has_plugin:
            with _agent_never_breaks():
                fields = self._job.tags(turn).as_fields()
                extra = self.options.extra_json or {}
                self.options = self.options.model_copy(update={"extra_json": {**fields, **extra}})
                self._job.note_server(self.server)
        self._token = _is_under_way.set(True)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _is_under_way.reset(self._token)
        if exc is None or self._turn is None:
            return
        if self._has_arrived or _is_about_an_answer(exc):
            self._complete(self._usage, time.monotonic())
        else:
            self._job.ledger.fail(self._turn)

    def read(self, reply: object) -> None:
        """Note what the reply says, now or when it has arrived; the reply itself stays as it is."""
        with _agent_never_breaks():
            when_complete(reply, self._complete)

    def _watch_parser(self) -> None:
        """Note when a reply reaches the SDK's parser, which may refuse what the model wrote."""
        parse = getattr(self.options, "post_parser", None)
        if callable(parse):
            watched = self._watched(parse)
            self.options = self.options.model_copy(update={"post_parser": watched})

    def _watched(self, parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def parse_arrived(reply: Any) -> Any:
            self._has_arrived = True
            with _agent_never_breaks():
                self._usage = read_usage(reply)
            return parse(reply)

        return parse_arrived

    def _complete(self, usage: Usage | None, ended_at_s: float) -> None:
        assert self._turn is not None
        self._job.ledger.finish(self._turn, usage, ended_at_s=ended_at_s)
        if self._job.is_over:  # the release went out before this turn ended, and was pinned
            self._job.release()


def call_for(job: Job[Any] | None, client: Any, options: Any) -> TaggedCall | None:
    """The tagged call that a request of `client` is to be; None if it is none of our business.

    That is: outside of a job, inside of another tagged call, to another route, or tagged by the
    caller's own hand. Does no I/O.
    """
    if job is None or _is_under_way.get() or options.url not in TAGGED_PATHS:
        return None
    with _agent_never_breaks():
        body, extra = options.json_data, options.extra_json or {}
        is_taggable = isinstance(body, Mapping) and isinstance(extra, Mapping)
        headers = _texts(options.headers)
        if is_taggable and not _is_tagged_by_hand(body, extra, headers=headers):
            # Without a client the session speaks of any server: each client knows its own.
            server_url = None if job.client is None else job.server_url
            return TaggedCall(job, server_of(client, server_url, options), options)
    return None


def server_of(client: Any, server_url: str | None, options: Any = None) -> KnownServer:
    """The server that a client's requests go to, unless the session names another one."""
    own_headers = getattr(options, "headers", None)
    server = known_server(server_url or str(client.base_url))
    server.reach_by(client, _texts(own_headers), is_direct=server_url is None)
    return server


def _texts(headers: object) -> dict[str, str]:
    """The headers that a request brings along, without the SDK's notes to itself."""
    items = headers.items() if isinstance(headers, Mapping) else ()
    return {
        name: value
        for name, value in items
        if isinstance(value, str) and not name.lower().startswith("x-stainless")
    }


def _is_tagged_by_hand(*places: Mapping[str, Any], headers: Mapping[str, str]) -> bool:
    """Whether a request names a job already, in any of the ways that the server understands."""
    nested = [place.get(name) for place in places for name in ("extra_body", "vllm_xargs")]
    holders = [holder for holder in (*places, *nested) if isinstance(holder, Mapping)]
    if any("job_id" in holder or "session_id" in holder for holder in holders):
        return True
    lower = {name.lower(): value for name, value in headers.items()}
    return "job_id" in fields_from_headers(lower)


def _is_about_an_answer(error: BaseException) -> bool:
    """Whether an error of the SDK finds fault with an answer that was no error."""
    return getattr(getattr(error, "response", None), "is_success", False) is True


@contextmanager
def _agent_never_breaks() -> Iterator[None]:
    global _has_logged_failure
    try:
        yield
    except AgentKVServerError:
        raise
    except Exception:
        if not _has_logged_failure:
            _has_logged_failure = True
            logger.exception("agentkv could not tag a request, which goes out untouched")
