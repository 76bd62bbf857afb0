"""Makes a call of a framework's function a job, a turn of one of its agents, or a tool call.

`frameworks` wraps functions with `a_run`, `a_turn` and `a_tool`. A call lasts until it returns, or
until what it returns is used up: a coroutine, a generator, an async generator, an async context
manager, a future. A failure of ours is logged once, and the original goes on.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from contextlib import (
    AbstractContextManager,
    _AsyncGeneratorContextManager,
    asynccontextmanager,
)
from typing import Any

import agentkv
from agentkv.client import context
from agentkv.client.job import Job, ToolRun
from agentkv.client.patches import Method, Patch, log_failure
from agentkv.client.session import Session

Arguments = Mapping[str, Any]
"""The arguments of a call by the names of the function's parameters, defaults included."""

_lock = threading.Lock()
_runs: dict[Job[Any], AgentRun] = {}
"""The runs under way, by their jobs."""
_tool_of: contextvars.ContextVar[Job[Any] | None] = contextvars.ContextVar(
    "agentkv_tool_of", default=None
)
"""The job whose tool is running in this thread or task."""


class Scope:
    """Something that begins with a call and ends with it, or with what the call returned.

    Its `job` is current, and its `tool_of` the job whose tool is running, in each piece of the
    call: all of it, or one step of a generator.
    """

    job: Job[Any] | None = None
    tool_of: Job[Any] | None = None

    def begin(self) -> None:
        """Find the job."""

    def end(self) -> None:
        """End what began."""


class _Active(AbstractContextManager[None]):
    """Surrounds a piece of a call; may be left in another context, as by the garbage collector."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        self._job_before = context.innermost.set(self._scope.job)
        self._tool_before = _tool_of.set(self._scope.tool_of)

    def __exit__(self, *exc_info: object) -> None:
        try:
            _tool_of.reset(self._tool_before)
            context.innermost.reset(self._job_before)
        except ValueError:
            context.innermost.set(agentkv.current_job())


class AgentRun(Scope):
    """A run of an agent, which is a job of its own; `agent` tells runs of several agents apart.

    A run right inside of a session that the caller opened is that session's job, unless another run
    has it already. Inside of another run it is a child job.
    """

    def __init__(self, agent: object) -> None:
        self.agent = agent
        self._session: Session[None] | None = None
        self.in_control: Job[Any] | None = None
        self._first: object = None
        self._turn_takers: dict[int, AgentRun] = {}

    def begin(self) -> None:
        """Find or open the job."""
        enclosing = agentkv.current_job()
        with _lock:
            if enclosing is not None and enclosing not in _runs:
                self.job = enclosing
                _runs[enclosing] = self
                return
        self._session = agentkv.session()
        # entered in another context: the job becomes current only while the call is active
        self.job = contextvars.copy_context().run(self._session.__enter__)
        _runs[self.job] = self

    def end(self) -> None:
        """Release the job, unless it is the caller's; a second call does nothing."""
        job, self.job = self.job, None
        if job is None:
            return
        _runs.pop(job, None)
        for member in self._turn_takers.values():
            member.end()
        if self._session is not None:
            contextvars.copy_context().run(self._session.__exit__, None, None, None)

    def job_of(self, agent: object) -> Job[Any] | None:
        """The job of an agent that takes a turn: the first has the run's job, each other a child.

        Control passes from agent to agent: the job of the one before holds no memory meanwhile.
        """
        if self._first is None:
            self._first = agent
        if agent is self._first:
            job = self.job
        else:
            member = self._turn_takers.get(id(agent))
            if member is None:
                member = self._turn_takers[id(agent)] = AgentRun(agent)
                member.begin()
            job = member.job
        if self.in_control is not None and self.in_control is not job:
            self.in_control.release()
        self.in_control = job
        return job


def _job_in_control() -> Job[Any] | None:
    """The current job, or, where agents take turns in a run, that of the last one to take one."""
    job = agentkv.current_job()
    run = None if job is None else _runs.get(job)
    return job if run is None or run.in_control is None else run.in_control


class AgentTurn(Scope):
    """A turn of one agent in a run that several agents share."""

    def __init__(self, agent: object) -> None:
        self._agent = agent

    def begin(self) -> None:
        self.job = agentkv.current_job()
        run = None if self.job is None else _runs.get(self.job)
        if run is not None:
            self.job = run.job_of(self._agent)


class Tool(Scope):
    """A tool call of the current job; one inside of another one of the same job is part of that."""

    def __init__(self, call: agentkv.ToolCall) -> None:
        self._call = call
        self.job = self.tool_of = _job_in_control()
        self._run: ToolRun | None = None

    def begin(self) -> None:
        if self.job is not None and _tool_of.get() is not self.job:
            self._run = self.job.tool(self._call)
            self._run.__enter__()

    def end(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.__exit__(None, None, None)


Wrap = Callable[[Method, Patch], Method]
Follow = Callable[[Any, Callable[[], AbstractContextManager[None]], Callable[[], None]], bool]
"""Makes a run last as long as an object of the framework's own that a call returned: given that,
what surrounds each step of it, and what ends the run. False for an object of another kind."""


def until(find_future: Callable[[Any], asyncio.Future[Any]]) -> Follow:
    """A run whose steps are taken by a task, and which ends with a future."""

    def follow(result: Any, active: object, end: Callable[[], None]) -> bool:
        find_future(result).add_done_callback(lambda _: end())
        return True

    return follow


def a_run(
    agent: Callable[[Arguments], object] = lambda call: call["self"],
    *,
    follow: Follow | None = None,
) -> Wrap:
    """A call is a run of an agent, except one that a run of the same agent makes by itself.

    agent: finds it in the arguments; None if this call is no run.
    """

    def scope_of(call: Arguments) -> Scope | None:
        runner, job = agent(call), agentkv.current_job()
        if runner is None:
            return None
        around = None if job is None else _runs.get(job)
        if around is not None and around.agent is runner and _tool_of.get() is not job:
            return None
        return AgentRun(runner)

    return functools.partial(_wrapped, scope_of, follow)


def a_turn(agent: Callable[[Arguments], object]) -> Wrap:
    """A call is a turn of an agent, in a run in which several take turns (handoffs)."""
    return functools.partial(_wrapped, lambda call: AgentTurn(agent(call)), None)


def a_tool(describe: Callable[[Arguments], tuple[Any, Any] | None]) -> Wrap:
    """A call is a tool call; `describe` gives the arguments of `tool_call`, or None."""

    def scope_of(call: Arguments) -> Scope | None:
        described = describe(call)
        return None if described is None else Tool(tool_call(*described))

    return functools.partial(_wrapped, scope_of, None)


def tool_call(name: str, arguments: Any) -> agentkv.ToolCall:
    """The call of a tool; arguments are a mapping, JSON text, or the free text that some take."""
    entries: list[dict[str, Any]] = [{"name": name, "arguments": arguments}]
    if isinstance(arguments, str):
        entries.append({"custom": {"name": name, "input": arguments}})
    read = (agentkv.parse_tool_calls({"tool_calls": [entry]}) for entry in entries)
    return next((calls[0] for calls in read if calls), agentkv.ToolCall(name))


def _wrapped(
    scope_of: Callable[[Arguments], Scope | None],
    follow: Follow | None,
    original: Method,
    patch: Patch,
) -> Method:
    begin = functools.partial(_begun, inspect.signature(original), scope_of, patch)

    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            scope = begin(args, kwargs)
            if scope is None:
                return await original(*args, **kwargs)
            return await _drive_coroutine(scope, original(*args, **kwargs))

        return call_async

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        scope = begin(args, kwargs)
        if scope is None:
            return original(*args, **kwargs)
        lasting = False
        try:
            with _Active(scope):
                result = original(*args, **kwargs)
            result, lasting = _lasting(scope, result, follow)
            return result
        finally:
            if not lasting:
                _end(scope)

    return call


def _begun(
    signature: inspect.Signature,
    scope_of: Callable[[Arguments], Scope | None],
    patch: Patch,
    args: Any,
    kwargs: Any,
) -> Scope | None:
    """The scope of a call, which has begun; None if it is not followed."""
    if not patch.is_active:
        return None
    try:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        scope = scope_of(bound.arguments)
        if scope is not None:
            scope.begin()
    except Exception:
        log_failure(f"could not follow {patch}")
        return None
    return scope


def _end(scope: Scope) -> None:
    try:
        scope.end()
    except Exception:
        log_failure("could not end a job or a tool")


def _lasting(scope: Scope, result: Any, follow: Follow | None) -> tuple[Any, bool]:
    """Put the scope around what a call returned; tell whether the scope lasts on with it."""
    if follow is not None and follow(
        result, functools.partial(_Active, scope), functools.partial(_end, scope)
    ):
        return result, True
    if asyncio.isfuture(result):
        result.add_done_callback(lambda _: _end(scope))
        return result, True
    for is_lazy, drive in _DRIVERS.items():
        if is_lazy(result):
            return drive(scope, result), True
    return result, False


def _drive(scope: Scope, generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Pass a generator on, with the scope active in each of its steps."""
    advance = functools.partial(generator.send, None)
    try:
        while True:
            with _Active(scope):
                item = advance()
            try:
                advance = functools.partial(generator.send, (yield item))
            except GeneratorExit:
                raise
            except BaseException as error:
                advance = functools.partial(generator.throw, error)
    except StopIteration as stop:
        return stop.value
    finally:
        with _Active(scope):
            generator.close()
        _end(scope)


async def _drive_async(scope: Scope, generator: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any]:
    """Pass an async generator on, with the scope active in each of its steps."""
    advance = functools.partial(generator.asend, None)
    try:
        while True:
            with _Active(scope):
                item = await advance()
            try:
                advance = functools.partial(generator.asend, (yield item))
            except GeneratorExit:
                raise
            except BaseException as error:
                advance = functools.partial(generator.athrow, error)
    except StopAsyncIteration:
        return
    finally:
        with _Active(scope):
            await generator.aclose()
        _end(scope)


async def _drive_coroutine(scope: Scope, coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        with _Active(scope):
            return await coroutine
    finally:
        _end(scope)


@asynccontextmanager
async def _drive_context(
    scope: Scope, manager: _AsyncGeneratorContextManager[Any]
) -> AsyncGenerator[Any]:
    """Enter an async context manager, with the scope active in its block as well."""
    try:
        with _Active(scope):
            async with manager as value:
                yield value
    finally:
        _end(scope)


_DRIVERS: Mapping[Callable[[Any], bool], Callable[[Scope, Any], Any]] = {
    inspect.isgenerator: _drive,
    inspect.isasyncgen: _drive_async,
    inspect.iscoroutine: _drive_coroutine,
    lambda result: isinstance(result, _AsyncGeneratorContextManager): _drive_context,
}
