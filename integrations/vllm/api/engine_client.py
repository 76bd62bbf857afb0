"""Calls the engine processes from an API server process, and merges their answers.

Called by the middleware and the routes. With several data-parallel engines each one is asked, since
a job may have its blocks on any of them. Knows the operations of `engine_side` by name only. Also
names the client of each request on its way to an engine.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any
from weakref import WeakValueDictionary

from vllm.v1.engine.exceptions import EngineDeadError

from agentkv.errors import AgentKVServerError

ANSWER_TIMEOUT_S = 30.0
"""The engine answers between two steps, so this is longer than any single step."""
BUSY_S = 1.0
"""How long a client's feedback waits for the engine; on a CPU a step takes seconds."""
MAX_HANDED_OVER = 256
"""Calls that the engine has and nobody waits for; with more, clients wait for the engine."""
JOBS_AT_ONCE = 64
"""Jobs that the engine describes between two of its steps: about half a millisecond."""

UTILITY_METHOD = "agentkv_call"
"""The utility method that the plugin gives to vLLM's engine core."""

served_client: ContextVar[str | None] = ContextVar("agentkv_served_client", default=None)
"""Whose HTTP request is served in this task, or in the task that started it."""


class EngineUnavailableError(AgentKVServerError):
    """Raised when the engine is dead, shutting down, or did not answer in time."""


class OperationFailedError(AgentKVServerError):
    """Raised when an operation failed inside the engine."""


async def ask_engines(core: Any, operation: str, args: Sequence[Any]) -> list[Any]:
    """Return one answer per engine of vLLM's asynchronous engine-core client, by rank."""
    # Not up to 0.31: there the call runs on all engines and returns the first one's answer.
    call_all = getattr(core, "call_utility_all_async", None)
    if call_all is None:
        return [await core.call_utility_async(UTILITY_METHOD, operation, list(args))]
    return list(await call_all(UTILITY_METHOD, operation, list(args)))


class EngineLink:
    """Sends operations to all engines behind this API server, by vLLM's AsyncLLM."""

    def __init__(self, engine_client: Any, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._engine_client = engine_client
        self._timeout_s = timeout_s
        self._reading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._handed_over: set[asyncio.Task[list[Any]]] = set()
        self._num_bad_tags = 0
        self._counting: asyncio.Task[None] | None = None

    async def call(self, operation: str, *args: Any) -> list[Any]:
        """Return one answer per engine, ordered by rank.

        Raises EngineUnavailableError or OperationFailedError if any engine gives none.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                answers = await ask_engines(self._engine_client.engine_core, operation, args)
        except TimeoutError:
            message = f"the engine gave no answer to {operation!r} within {self._timeout_s:g} s"
            raise EngineUnavailableError(message) from None
        except Exception as error:  # vLLM raises bare Exception for a failed call
            raise EngineUnavailableError(
                f"the engine could not answer {operation!r}: {type(error).__name__}: {error}"
            ) from error
        for answer in answers:
            if isinstance(answer, dict) and answer.keys() == {"error"}:
                raise OperationFailedError(f"the engine failed at {operation!r}: {answer['error']}")
        return answers

    async def hand_over(self, operation: str, *args: Any) -> list[Any] | None:
        """Return the answers likewise, or None if a step takes longer than BUSY_S: the engine has
        the call then, and makes it next."""
        task = asyncio.create_task(self.call(operation, *args))
        if (await asyncio.wait({task}, timeout=BUSY_S))[0]:
            return task.result()
        if len(self._handed_over) >= MAX_HANDED_OVER:
            return await task
        self._handed_over.add(task)  # the loop keeps no task alive
        task.add_done_callback(self._forget)
        return None

    def _forget(self, task: asyncio.Task[list[Any]]) -> None:
        self._handed_over.discard(task)
        task.exception()  # the client has its answer, and the next call says what is wrong

    async def read(self, client: str, operation: str, *args: Any) -> list[Any]:
        """Return the answers to a question that changes nothing.

        A client has one at a time, so between two steps the engine answers one call of each
        client, however many it asks."""
        async with self._reading.setdefault(client, asyncio.Lock()):
            return await self.call(operation, *args)

    def count_bad_tag(self) -> None:
        """Count one request without waiting for the engine, which gets many at once."""
        self._num_bad_tags += 1
        if self._counting is None:
            self._counting = asyncio.create_task(self._count_bad_tags())

    async def _count_bad_tags(self) -> None:
        while self._num_bad_tags:
            number, self._num_bad_tags = self._num_bad_tags, 0
            with suppress(AgentKVServerError):  # a dead engine is reported by the requests
                await self.call("bad_tags", number)
        self._counting = None


def name_clients(engine_client: Any, *, own_caches: bool = False) -> None:
    """Put `served_client` and checked tags into the sampling parameters of each request on its way
    to an engine, which trusts them.

    Requests of all routes pass here, one for each sample and beam, and what a body said of its
    client is overwritten. Pooling has no sampling parameters, and no job. `own_caches`: the name
    is part of the salt as well, before the request's own.
    """
    from ..engine.requests import checked_fields

    core: Any = engine_client.engine_core
    add_request = core.add_request_async

    @functools.wraps(add_request)
    async def add_request_of_client(request: Any) -> None:
        sampling, client = request.sampling_params, served_client.get()
        if client is not None and own_caches:
            request.cache_salt = f"{client} {request.cache_salt or ''}"
        if sampling is not None and client is not None:
            sampling.extra_args = checked_fields(request, client)
        await add_request(request)

    core.add_request_async = add_request_of_client


def end_streams_with(engine_client: Any) -> None:
    """Let open streams end with an error once the engine is stopped. vLLM cancels the task that
    would tell them (async_llm.py:306 of 0.32.0), and its HTTP server waits without a limit."""
    shutdown, loop = engine_client.shutdown, asyncio.get_running_loop()

    def shutdown_and_tell(*args: Any, **kwargs: Any) -> None:
        shutdown(*args, **kwargs)
        if not loop.is_closed():
            tell = engine_client.output_processor.propagate_error
            loop.call_soon_threadsafe(tell, EngineDeadError())

    engine_client.shutdown = shutdown_and_tell


Answer = dict[str, Any]


def merge_info(answers: Sequence[Answer]) -> Answer:
    """Return the first engine's answer with the blocks of all engines and their number."""
    num_blocks = sum(answer["num_blocks"] for answer in answers)
    return {**answers[0], "num_blocks": num_blocks, "num_engines": len(answers)}


def merge_stats(answers: Sequence[Answer], *, are_totals: bool = False) -> Answer:
    """Add up integers (counts) and average floats (shares and means), recursively.

    Seconds in totals are added up as well, booleans are or-ed, and any other type keeps the first
    engine's value.
    """
    if len(answers) == 1:
        return answers[0]
    merged: Answer = {}
    for name in {name: None for answer in answers for name in answer}:
        values = [answer[name] for answer in answers if name in answer]
        if all(isinstance(value, dict) for value in values):
            merged[name] = merge_stats(values, are_totals=name.endswith("_total"))
        elif all(isinstance(value, bool) for value in values):
            merged[name] = any(values)
        elif not all(isinstance(value, int | float) for value in values):
            merged[name] = values[0]
        else:
            is_sum = are_totals or all(isinstance(value, int) for value in values)
            merged[name] = sum(values) if is_sum else sum(values) / len(values)
    return merged


def merge_clients(answers: Sequence[Sequence[Answer]]) -> list[Answer]:
    """Return what each client has on all engines together."""
    by_name: dict[str, list[Answer]] = {}
    for client in (client for clients in answers for client in clients):
        by_name.setdefault(client["client"], []).append(client)
    return [merge_stats(same) for same in by_name.values()]


def merge_jobs(answers: Sequence[Sequence[Answer]]) -> list[Answer]:
    """Return all jobs; a job known to several engines appears once for each, with its engine."""
    if len(answers) == 1:
        return list(answers[0])
    return [{**job, "engine": rank} for rank, jobs in enumerate(answers) for job in jobs]


def merge_explained(answers: Sequence[Sequence[Answer]], most: int | None) -> list[Answer]:
    """Return the jobs of all engines, or the `most` that computed the most tokens a second time."""
    jobs = merge_jobs(answers)
    if most is None:
        return jobs

    def num_tokens(job: Answer) -> int:
        return sum(job["tokens"]["recomputed_tokens"].values())

    return sorted(jobs, key=num_tokens, reverse=True)[:most]


def merge_job(answers: Sequence[Answer | None]) -> Answer | None:
    """Return the job as the engine that computed most of it knows it; None if no engine does."""
    known = [(rank, job) for rank, job in enumerate(answers) if job is not None]
    if not known:
        return None
    rank, job = max(known, key=lambda each: each[1]["tokens"]["prompt_tokens"])
    return job if len(answers) == 1 else {**job, "engine": rank}
