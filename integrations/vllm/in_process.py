"""Tags the prompts of engines that a trainer runs in its own process: `AsyncLLM` and `LLM`.

There is no HTTP there: the tags ride in `SamplingParams.extra_args`, and tool events and releases
go by the engine's own utility call. The plugin installs it with the first engine that has one of
our policies. It imports no vLLM itself.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from agentkv.client.job import Job, job_covering
from agentkv.client.patches import Method, Patch
from agentkv.client.replies import Usage
from agentkv.client.server import JobLink, Server
from agentkv.client.tagged_call import TaggedCall, log_failure
from agentkv.client.transport import ServerTransport
from agentkv.errors import AgentKVServerError

from .api.engine_client import UTILITY_METHOD, ask_engines
from .server_policy import policy_of


class Engine(Server):
    """An engine of this process, as a server that was asked already."""

    def __init__(self, engine: Any) -> None:
        super().__init__("a vLLM engine in this process")
        config = getattr(engine, "llm_engine", engine).vllm_config
        self.model = str(config.model_config.model)
        if policy_of(config) is not None:
            self.info = {}
        else:
            self.missing = (
                f"{self.root_url} runs a policy of vLLM's own, allowed is one of agentkv's, by "
                "scheduling_policy= or AGENTKV_POLICY"
            )
        self._engine = weakref.ref(engine)
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop that runs the engine, if it is an asynchronous one."""
        self._calls: set[asyncio.Task[None]] = set()

    def call(self, link: JobLink, operation: str, *args: object) -> None:
        """Make a call into the engine: at once, or on the event loop that runs it. Never waits for
        an asynchronous engine."""
        engine = self._engine()
        if engine is None:
            return
        try:
            if self.loop is None:
                link.note_savings(self.root_url, _savings(_ask(engine, operation, args)))
            elif not self.loop.is_closed():
                call = self._call(engine, link, operation, args)
                self.loop.call_soon_threadsafe(self._start, call)
        except Exception:
            log_failure("could not reach an engine of this process")

    def _start(self, call: Any) -> None:
        task = asyncio.ensure_future(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _call(
        self, engine: Any, link: JobLink, operation: str, args: Sequence[object]
    ) -> None:
        try:
            # a job has its blocks on one of several engines
            for answer in await ask_engines(engine.engine_core, operation, args):
                link.note_savings(self.root_url, _savings(answer))
        except Exception:
            log_failure("could not reach an engine of this process")


def _ask(engine: Any, operation: str, args: Sequence[object]) -> object:
    """The answer of the engine of an `LLM`, which has it in this process or in one of its own."""
    core = engine.llm_engine.engine_core
    if hasattr(core, "call_utility"):
        return core.call_utility(UTILITY_METHOD, operation, list(args))
    return core.engine_core.agentkv_call(operation, list(args))


def _savings(answer: object) -> object:
    return answer.get("savings") if isinstance(answer, dict) else None


@dataclass(frozen=True, slots=True)
class EngineJobLink(JobLink):
    """A job's way to an engine of this process."""

    def submit(self, method: str, path: str, body: Mapping[str, object] | None = None) -> None:
        """Call what a job's route stands for: `/jobs/ID/tool` or `/jobs/ID/release`."""
        assert isinstance(self.server, Engine)
        _, _, job_id, operation = path.split("/")
        args = [unquote(job_id)] if operation == "release" else [unquote(job_id), dict(body or {})]
        self.server.call(self, operation, *args)


class EngineCall(TaggedCall):
    """One prompt for an engine of this process."""

    def __init__(self, job: Job[Any], engine: Any, params: Any) -> None:
        server = _engine_of(engine)
        link = job.links.get(server)
        if link is None:
            warns = job.on_missing_server == "warn"
            link = EngineJobLink(server, ServerTransport(), warns, job.ledger.note_savings)
        super().__init__(job, link)
        self.params = params
        self.server = server
        self._num_output_tokens = 0
        self._is_open = True

    def describe(self) -> tuple[str, str | None]:
        return "text_completion", self.server.model

    def tag(self) -> None:
        if self.fields:
            self.params = copy.copy(self.params)
            self.params.extra_args = self.extra_args(self.params.extra_args)

    def took(self, output: Any) -> None:
        """Close the turn with a request's last output, unless that says that it was aborted."""
        num_tokens = sum(len(completion.token_ids) for completion in output.outputs)
        is_delta = getattr(self.params.output_kind, "name", "") == "DELTA"
        self._num_output_tokens = num_tokens + self._num_output_tokens * is_delta
        if not output.finished:
            return
        if any(completion.finish_reason == "abort" for completion in output.outputs):
            return
        self._is_open = False
        usage = Usage(
            len(output.prompt_token_ids or ()), output.num_cached_tokens, self._num_output_tokens
        )
        self.close(usage, time.monotonic())

    def left(self) -> None:
        """Nobody takes another output: without a last one the turn has no answer."""
        if self._is_open:
            self._is_open = False
            self.close_unanswered("aborted")


_engines: weakref.WeakKeyDictionary[Any, Engine] = weakref.WeakKeyDictionary()


def _engine_of(engine: Any) -> Engine:
    known = _engines.get(engine)
    if known is None:
        known = _engines[engine] = Engine(engine)
    return known


def _call_of(job: Job[Any], engine: Any, params: Any) -> EngineCall | None:
    """The turn of a request, now open; None if it is none, was tagged by hand, or cannot be one."""
    if not hasattr(params, "extra_args") or {"job_id", "session_id"} & {*(params.extra_args or ())}:
        return None
    try:
        call = EngineCall(job, engine, params)
        call.begin()
        call.end_sending()  # nothing below it is a request of its own
        return call
    except AgentKVServerError:
        raise
    except Exception:
        log_failure("could not tag a request, which goes out untouched")
        return None


def _tagging_async(original: Method, patch: Patch) -> Method:
    @functools.wraps(original)
    def generate(self: Any, prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> Any:
        job = job_covering(self) if patch.is_active else None
        if job is None:
            return original(self, prompt, sampling_params, *args, **kwargs)
        send = functools.partial(original, self, prompt)
        return _followed(job, self, sampling_params, lambda params: send(params, *args, **kwargs))

    return generate


async def _followed(
    job: Job[Any], engine: Any, params: Any, send: Callable[[Any], AsyncGenerator[Any, None]]
) -> AsyncGenerator[Any, None]:
    """The outputs of a request, which opens a turn when the first one is asked for."""
    call = _call_of(job, engine, params)
    if call is not None:
        call.server.loop = asyncio.get_running_loop()
    async with aclosing(send(params if call is None else call.params)) as outputs:
        try:
            async for output in outputs:
                if call is not None:
                    call.took(output)
                yield output
        finally:
            if call is not None:
                call.left()


def _tagging_sync(original: Method, patch: Patch) -> Method:
    @functools.wraps(original)
    def generate(
        self: Any, prompts: Any, sampling_params: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        job = job_covering(self) if patch.is_active else None
        if job is None or _is_batch(prompts):
            return original(self, prompts, sampling_params, *args, **kwargs)
        params = sampling_params
        if params is None:
            params = self.get_default_sampling_params()
        elif isinstance(params, Sequence):
            (params,) = params
        call = _call_of(job, self, params)
        if call is None:
            return original(self, prompts, sampling_params, *args, **kwargs)
        try:
            outputs = original(self, prompts, call.params, *args, **kwargs)
            call.took(outputs[0])
            return outputs
        finally:
            call.left()

    return generate


def _is_batch(prompts: Any) -> bool:
    """Whether these are several prompts; the tokens of one are a list, too."""
    if isinstance(prompts, str | Mapping) or not isinstance(prompts, Sequence):
        return False
    return len(prompts) != 1 and not all(isinstance(each, int) for each in prompts)


_PATCHES = (
    Patch("vllm.v1.engine.async_llm:AsyncLLM.generate", _tagging_async),
    Patch("vllm.entrypoints.llm:LLM.generate", _tagging_sync),
)


def tag_engines_of_this_process() -> None:
    """Make each prompt for an engine of this process a turn of the session that it is in."""
    for patch in _PATCHES:
        patch.install()
