"""Tags the prompts of an `AsyncLLM` that a trainer runs in its own process.

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
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from agentkv.client.context import job_covering
from agentkv.client.job import Job, TaggedTurn
from agentkv.client.patches import Method, Patch, log_failure
from agentkv.errors import AgentKVServerError
from agentkv.tracing import RequestShape

from .api.engine_client import ask_engines
from .server_policy import policy_of

logger = logging.getLogger(__name__)

_warned_of: weakref.WeakSet[Any] = weakref.WeakSet()
"""Engines without one of our policies."""


def _note_missing(engine: Any, on_missing: str) -> None:
    """Raise, or warn once, as a session wants it where the policy is vLLM's own."""
    text = (
        "this engine runs a policy of vLLM's own, allowed is one of agentkv's, by "
        "scheduling_policy= or AGENTKV_POLICY"
    )
    if on_missing == "raise":
        raise AgentKVServerError(f"{text}; needed because of on_missing_server='raise'")
    if on_missing == "warn" and engine not in _warned_of:
        _warned_of.add(engine)
        logger.warning("agentkv: %s", text)


class EngineListener:
    """Reports a job's tools and its end to an engine of this process."""

    def __init__(self, job: Job[Any], engine: Any) -> None:
        """Called on the event loop that runs the engine."""
        self._job_id = job.job_id
        self._note = functools.partial(job.note_answer, "an engine in this process")
        self._engine = weakref.ref(engine)
        self._loop = asyncio.get_running_loop()

    def tell(self, action: str, body: Mapping[str, object]) -> None:
        """Call the operation of a job's route on the engine's loop, without waiting."""
        engine = self._engine()
        if engine is None or self._loop.is_closed():
            return
        args: list[object] = [self._job_id]
        if action != "release":
            args.append(dict(body))
        call = self._call(engine, action, args)
        try:
            asyncio.run_coroutine_threadsafe(call, self._loop)
        except RuntimeError:  # the loop was closed just now
            call.close()

    async def _call(self, engine: Any, action: str, args: list[object]) -> None:
        try:
            # a job has its blocks on one of several engines
            for answer in await ask_engines(engine.engine_core, action, args):
                if action == "release":
                    self._note(answer)
        except Exception:
            log_failure("could not reach an engine of this process")


def _begin_turn(job: Job[Any], engine: Any, params: Any) -> tuple[TaggedTurn | None, Any]:
    """Open the turn of a request, and return its sampling parameters with the tags.

    There is no turn if it was tagged by hand, or cannot be tagged.
    """
    if not hasattr(params, "extra_args") or {"job_id", "session_id"} & {*(params.extra_args or ())}:
        return None, params
    try:
        has_plugin = policy_of(engine.vllm_config) is not None
        if not has_plugin:
            _note_missing(engine, job.on_missing_server)
        model = str(engine.vllm_config.model_config.model)
        shape = RequestShape("text_completion", model, "", has_plugin)
        turn = job.begin_turn(describe=lambda: shape)
        turn.leave()
        if has_plugin:
            # flags as the numbers that vLLM's own requests have there
            tags = turn.tags.as_fields().items()
            fields = {name: int(v) if isinstance(v, bool) else v for name, v in tags}
            params = copy.copy(params)
            params.extra_args = {**(params.extra_args or {}), **fields}
            job.listeners.setdefault(id(engine), EngineListener(job, engine).tell)
        return turn, params
    except AgentKVServerError:
        raise
    except Exception:
        log_failure("could not tag a request, which goes out untouched")
        return None, params


def _tagging(original: Method, patch: Patch) -> Method:
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
    turn, params = _begin_turn(job, engine, params)
    async with aclosing(send(params)) as outputs:
        try:
            async for output in outputs:
                reasons = {completion.finish_reason for completion in output.outputs}
                if turn is not None and output.finished and "abort" not in reasons:
                    turn.end()
                yield output
        finally:
            if turn is not None:
                turn.end("aborted")  # nobody takes another output; without effect after its end


_PATCH = Patch("vllm.v1.engine.async_llm:AsyncLLM.generate", _tagging)


def tag_engines_of_this_process() -> None:
    """Make each prompt for an engine of this process a turn of the session that it is in."""
    _PATCH.install()
