"""Tags the prompts of engines that a trainer runs in its own process: `AsyncLLM` and `LLM`.

There is no HTTP there: the tags ride in `SamplingParams.extra_args`, and tool events and releases
go by the engine's own utility call. The plugin installs it with the first engine that has one of
our policies. It imports no vLLM itself.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import logging
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from agentkv.client.context import job_covering
from agentkv.client.job import Job, TaggedTurn
from agentkv.client.patches import Method, Patch, log_failure
from agentkv.errors import AgentKVServerError
from agentkv.tracing import RequestShape

from .api.engine_client import UTILITY_METHOD, ask_engines
from .server_policy import policy_of

logger = logging.getLogger(__name__)


class Engine:
    """An engine of this process, and whether it has one of our policies."""

    def __init__(self, engine: Any) -> None:
        config = getattr(engine, "llm_engine", engine).vllm_config
        self.model = str(config.model_config.model)
        self.has_plugin = policy_of(config) is not None
        self._has_warned = False
        self._engine = weakref.ref(engine)
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop that runs the engine, if it is an asynchronous one."""
        self._calls: set[asyncio.Task[None]] = set()

    def note_missing(self, on_missing: str) -> None:
        """Raise, or warn once, as a session wants it where the policy is vLLM's own."""
        text = (
            "this engine runs a policy of vLLM's own, allowed is one of agentkv's, by "
            "scheduling_policy= or AGENTKV_POLICY"
        )
        if on_missing == "raise":
            raise AgentKVServerError(f"{text}; needed because of on_missing_server='raise'")
        if on_missing == "warn" and not self._has_warned:
            self._has_warned = True
            logger.warning("agentkv: %s", text)

    def call(self, note: Callable[[object], None], operation: str, *args: object) -> None:
        """Make a call into the engine: at once, or on the event loop that runs it. Never waits for
        an asynchronous engine."""
        engine = self._engine()
        if engine is None:
            return
        try:
            if self.loop is None:
                note(_ask(engine, operation, args))
            elif not self.loop.is_closed():
                call = self._call(engine, note, operation, args)
                self.loop.call_soon_threadsafe(self._start, call)
        except Exception:
            log_failure("could not reach an engine of this process")

    def _start(self, call: Any) -> None:
        task = asyncio.ensure_future(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _call(
        self, engine: Any, note: Callable[[object], None], operation: str, args: Sequence[object]
    ) -> None:
        try:
            # a job has its blocks on one of several engines
            for answer in await ask_engines(engine.engine_core, operation, args):
                note(answer)
        except Exception:
            log_failure("could not reach an engine of this process")


def _ask(engine: Any, operation: str, args: Sequence[object]) -> object:
    """Return the answer of an `LLM`'s engine, in this process or in one of its own."""
    core = engine.llm_engine.engine_core
    if hasattr(core, "call_utility"):
        return core.call_utility(UTILITY_METHOD, operation, list(args))
    return core.engine_core.agentkv_call(operation, list(args))


class EngineListener:
    """Reports a job's tools and its end to an engine of this process."""

    def __init__(self, job: Job[Any], engine: Engine) -> None:
        self._job_id = job.job_id
        self._note = functools.partial(job.note_answer, "an engine in this process")
        self._engine = engine

    def tell(self, action: str, body: Mapping[str, object]) -> None:
        """Call the operation of a job's route."""
        if action == "release":
            self._engine.call(self._note, action, self._job_id)
        else:
            self._engine.call(lambda answer: None, action, self._job_id, dict(body))


class EngineCall:
    """Makes one prompt for an engine of this process a turn of a job."""

    def __init__(self, job: Job[Any], engine: Engine, params: Any) -> None:
        self.engine = engine
        self.params = params
        self._job = job
        self._turn: TaggedTurn | None = None

    def begin(self) -> None:
        """Open the turn, and tag the sampling parameters of an engine that reads the tags."""
        job, engine = self._job, self.engine
        if not engine.has_plugin:
            engine.note_missing(job.on_missing_server)
        shape = RequestShape("text_completion", engine.model, "", engine.has_plugin)
        self._turn = job.begin_turn(describe=lambda: shape)
        self._turn.leave()
        if engine.has_plugin:
            # flags as the numbers that vLLM's own requests have there
            tags = self._turn.tags.as_fields().items()
            fields = {name: int(v) if isinstance(v, bool) else v for name, v in tags}
            self.params = copy.copy(self.params)
            self.params.extra_args = {**(self.params.extra_args or {}), **fields}
            job.listeners.setdefault(engine, EngineListener(job, engine))

    def took(self, output: Any) -> None:
        """Close the turn with a request's last output, unless that says that it was aborted."""
        reasons = {completion.finish_reason for completion in output.outputs}
        if output.finished and "abort" not in reasons and self._turn is not None:
            self._turn.end()

    def left(self) -> None:
        """Nobody takes another output: without a last one the turn has no answer."""
        if self._turn is not None:
            self._turn.end("aborted")


_engines: weakref.WeakKeyDictionary[Any, Engine] = weakref.WeakKeyDictionary()


def _engine_of(engine: Any) -> Engine:
    known = _engines.get(engine)
    if known is None:
        known = _engines[engine] = Engine(engine)
    return known


def _call_of(job: Job[Any], engine: Any, params: Any) -> EngineCall | None:
    """Open the turn of a request; None if it is none, was tagged by hand, or cannot be one."""
    if not hasattr(params, "extra_args") or {"job_id", "session_id"} & {*(params.extra_args or ())}:
        return None
    try:
        call = EngineCall(job, _engine_of(engine), params)
        call.begin()
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
    """Yield the outputs of a request, which opens a turn when the first one is asked for."""
    call = _call_of(job, engine, params)
    if call is not None:
        call.engine.loop = asyncio.get_running_loop()
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
    """Return whether these are several prompts; the tokens of one are a list, too."""
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
