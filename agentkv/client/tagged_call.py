"""One request of the OpenAI SDK as a turn of a job: tagged, numbered, timed.

`openai_sdk` makes one before it sends a request. It works on the SDK's `options` object, the same
in versions 2 and 3, before the SDK turns it into HTTP and retries it: a retry has the same turn.
Knows nothing about how a request is intercepted or sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from typing import Any

from agentkv.client.job import Job
from agentkv.client.ledger import OpenTurn
from agentkv.client.replies import Usage, read_usage, when_complete
from agentkv.client.server import Server, server_at
from agentkv.client.transport import texts_of
from agentkv.protocol import fields_from_headers

logger = logging.getLogger(__name__)

TAGGED_PATHS = frozenset({"/chat/completions", "/completions", "/responses"})

# True while a tagged request is being sent: the SDK's methods may be wrapped twice around it, by
# job.client and by the instrumented class, and it is one turn.
_is_under_way: ContextVar[bool] = ContextVar("agentkv_call_under_way", default=False)
_has_logged_failure = False


class TaggedCall:
    """A request about to be sent: `begin` before, then `fail` or `complete` after sending.

    `options` are those to send: the caller's, and tagged after `begin`.
    """

    def __init__(self, job: Job[Any], server: Server, options: Any) -> None:
        self.options = options
        self.server = server
        self._job = job
        self._turn: OpenTurn | None = None
        self._token: Token[bool] | None = None
        self._parse: Callable[[Any], Any] | None = None
        self._has_arrived = False
        self._usage: Usage | None = None

    def begin(self) -> None:
        """Open the turn and tag the request, if its server, asked before, has the plugin.

        Otherwise warn or raise AgentKVServerError, as the session wants.
        """
        job, server, update = self._job, self.server, dict[str, Any]()
        has_plugin = server.has_plugin
        if not has_plugin:
            self._note_missing_plugin()
        parse = getattr(self.options, "post_parser", None)
        if callable(parse):
            self._parse = parse
            update["post_parser"] = self._parse_arrived
        self._turn = job.ledger.begin()
        if has_plugin:
            fields = job.tags(self._turn).as_fields()
            update["extra_json"] = {**fields, **(self.options.extra_json or {})}
            if server not in job.servers:
                job.servers.append(server)
        if update:
            self.options = self.options.model_copy(update=update)
        self._token = _is_under_way.set(True)

    def fail(self, error: BaseException) -> None:
        """Close the turn of a request that raised an error."""
        self._end_sending()
        assert self._turn is not None
        # an error about a successful (2xx) answer: the SDK rejected what the model wrote
        is_answered = getattr(getattr(error, "response", None), "is_success", False) is True
        if self._has_arrived or is_answered:
            self._finish(self._usage, time.monotonic())
        else:
            self._job.ledger.fail(self._turn)

    def complete(self, reply: object) -> None:
        """Close the turn when its reply has arrived, now or later; the reply stays unchanged."""
        self._end_sending()
        try:
            when_complete(reply, self._finish)
        except Exception:
            log_failure("could not read a reply")

    def _note_missing_plugin(self) -> None:
        server = self.server
        if self._job.on_missing_server == "raise":
            server.require_plugin()
        if self._job.on_missing_server == "warn":
            server.warn_once()
        server.ask_again_if_due()

    def _parse_arrived(self, reply: Any) -> Any:
        """Note that a reply reached the SDK's parser, which may reject what the model wrote."""
        self._has_arrived = True
        try:
            self._usage = read_usage(reply)
        except Exception:
            log_failure("could not read a reply")
        assert self._parse is not None
        return self._parse(reply)

    def _end_sending(self) -> None:
        if self._token is not None:
            _is_under_way.reset(self._token)

    def _finish(self, usage: Usage | None, ended_at_s: float) -> None:
        assert self._turn is not None
        self._job.ledger.finish(self._turn, usage, ended_at_s=ended_at_s)
        if self._job.is_over:  # this turn was pinned after the job's release
            self._job.release()


def call_for(job: Job[Any] | None, client: Any, options: Any) -> TaggedCall | None:
    """The tagged call that a request of `client` becomes; does no I/O.

    None outside of a job, inside of another tagged call, for other routes, and for a request that
    the caller tagged by hand.
    """
    if job is None or _is_under_way.get() or options.url not in TAGGED_PATHS:
        return None
    body, extra = options.json_data, options.extra_json or {}
    headers = texts_of(options.headers) if isinstance(options.headers, Mapping) else {}
    is_taggable = isinstance(body, Mapping) and isinstance(extra, Mapping)
    if not is_taggable or _is_tagged_by_hand(body, extra, headers):
        return None
    # Without a client the session applies to any server: each client knows its own.
    server_url = None if job.covered_client is None else job.server_url
    return TaggedCall(job, server_of(client, server_url, headers), options)


def server_of(
    client: Any, server_url: str | None, headers: Mapping[str, str] | None = None
) -> Server:
    """The server that a client's requests go to, unless the session names another one."""
    server = server_at(server_url or str(client.base_url))
    server.reach_by(client, headers or {}, is_direct=server_url is None)
    return server


def _is_tagged_by_hand(
    body: Mapping[str, Any], extra: Mapping[str, Any], headers: Mapping[str, str]
) -> bool:
    """True if a request names a job already, in any form that the server understands."""
    for place in (body, extra):
        for holder in (place, place.get("extra_body"), place.get("vllm_xargs")):
            if isinstance(holder, Mapping) and ("job_id" in holder or "session_id" in holder):
                return True
    if not headers:
        return False
    return "job_id" in fields_from_headers({name.lower(): headers[name] for name in headers})


def log_failure(what: str) -> None:
    """Log the exception being handled, once per process: ours must not break the agent."""
    global _has_logged_failure
    if not _has_logged_failure:
        _has_logged_failure = True
        logger.exception("agentkv %s; the agent is not affected", what)
