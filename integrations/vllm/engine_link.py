"""Calls from an API server process into the engine process, and what they come back as.

With several data-parallel engines every one is asked and the answers are merged, since a job may
have its blocks on any of them. It knows the operations by name only.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Protocol

from agentkv.errors import AgentKVServerError

ANSWER_TIMEOUT_S = 30.0
"""Longer than any one step of the engine, which answers between steps."""

_METHOD = "agentkv_call"


class EngineCore(Protocol):
    """The part of vLLM's asynchronous engine-core client that is used here."""

    async def call_utility_async(self, method: str, *args: Any) -> Any:
        """The answer of the first engine."""
        ...


class EngineClient(Protocol):
    """The part of vLLM's AsyncLLM that is used here."""

    @property
    def engine_core(self) -> EngineCore:
        """The connection to the engine processes."""
        ...


class EngineUnavailableError(AgentKVServerError):
    """The engine is dead, shutting down, or did not answer in time."""


class OperationFailedError(AgentKVServerError):
    """The engine is there but the operation failed in it."""


class EngineLink:
    """One operation at a time to every engine behind this API server."""

    def __init__(self, engine_client: EngineClient, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._engine_client = engine_client
        self._timeout_s = timeout_s
        self._background: set[asyncio.Task[None]] = set()

    async def call(self, operation: str, *args: Any) -> list[Any]:
        """One answer per engine, in the order of their ranks.

        Raises EngineUnavailableError or OperationFailedError if any of them does not give one.
        """
        core: Any = self._engine_client.engine_core
        # 0.31 has no call to all engines: with several, it runs on all and answers for the first.
        call_all = getattr(core, "call_utility_all_async", None)
        try:
            async with asyncio.timeout(self._timeout_s):
                if call_all is not None:
                    answers = list(await call_all(_METHOD, operation, list(args)))
                else:
                    answers = [await core.call_utility_async(_METHOD, operation, list(args))]
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

    def count_bad_tag(self) -> None:
        """Count one rejected request, without waiting for the engine."""
        task = asyncio.create_task(self._count_bad_tag())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _count_bad_tag(self) -> None:
        # The client has its answer already; an engine that is down says so elsewhere.
        with suppress(AgentKVServerError):
            await self.call("bad_tag")
