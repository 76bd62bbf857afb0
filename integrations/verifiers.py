"""Which functions of verifiers, and so of prime-rl, begin and end a rollout, and ask for its turns.

The agent of a rollout is a program of its own, whose model calls pass verifiers' interception
server. That sends each with the id of the rollout's trace as `X-Session-ID`, which is the job's id.
A tool runs from the reply that calls it to the request that has its result.
Source: verifiers 0.4.0, v1/interception/server.py, v1/session.py, v1/graph.py and v1/clients/.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from agentkv.client import context
from agentkv.client.job import ToolRun
from agentkv.client.patches import Method, Patch
from agentkv.client.tagged_call import log_failure

from .rollouts import end_job, open_job
from .runs import Wrap, tool_call


class _Rollout:
    """A rollout under way: its job, and its running tools by the ids of their calls."""

    def __init__(self, trace_id: str) -> None:
        self.job = open_job(trace_id, has_headers=True)
        self._tools: dict[str, ToolRun] = {}

    def note_results(self, messages: list[Any]) -> None:
        """End the tools whose results are among the messages that a request adds."""
        for message in messages:
            tool = self._tools.pop(getattr(message, "tool_call_id", None) or "", None)
            if tool is not None:
                tool.__exit__(None, None, None)

    def note_calls(self, calls: list[Any]) -> None:
        """Begin the tools that a reply calls."""
        for call in calls:
            tool = self._tools[call.id] = self.job.tool(tool_call(call.name, call.arguments))
            tool.__enter__()


_rollouts: dict[str, _Rollout] = {}
"""Rollouts by the ids of their traces, from the interception server's `register` to `release`."""


def _noting(note: Callable[[Any, Any], None]) -> Wrap:
    """A function whose calls are noted once they returned: its arguments, and what it returned."""

    def wrap(original: Method, patch: Patch) -> Method:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            try:
                if patch.is_active:
                    note(args, result)
            except Exception:
                log_failure(f"could not follow {patch}")
            return result

        return call

    return wrap


def _begin(args: Any, _: Any) -> None:
    """`InterceptionServer.register(session)`."""
    trace_id = args[1].trace.id
    _rollouts[trace_id] = _Rollout(trace_id)


def _end(args: Any, _: Any) -> None:
    """`RolloutSession.release()`: the trace is sealed, and its reward not computed yet."""
    rollout = _rollouts.pop(args[0].trace.id, None)
    if rollout is not None:
        end_job(rollout.job)


def _asked(args: Any, turn: Any) -> None:
    """`prepare_turn(trace, ...)`, before a request; what it returns knows the new messages."""
    rollout = _rollouts.get(args[0].id)
    if rollout is not None:
        rollout.note_results(turn.tail)


def _answered(args: Any, _: Any) -> None:
    """`PendingTurn.commit(response)`, after a reply that counts."""
    turn, response = args
    rollout = _rollouts.get(turn.trace.id)
    if rollout is not None:
        rollout.note_calls(response.message.tool_calls or [])


def _a_turn(original: Method, patch: Patch) -> Method:
    """A client's method that asks the model: its HTTP request is a turn of the rollout's job."""

    @functools.wraps(original)
    async def ask(*args: Any, **kwargs: Any) -> Any:
        rollout = _rollouts.get(kwargs.get("session_id") or "")
        if rollout is None or not patch.is_active:
            return await original(*args, **kwargs)
        with context.job_made_current(rollout.job):
            return await original(*args, **kwargs)

    return ask


HOOKS: Mapping[str, Wrap] = {
    "verifiers.v1.interception.server:InterceptionServer.register": _noting(_begin),
    "verifiers.v1.session:RolloutSession.release": _noting(_end),
    "verifiers.v1.graph:prepare_turn": _noting(_asked),
    "verifiers.v1.graph:PendingTurn.commit": _noting(_answered),
    "verifiers.v1.clients.train:TrainClient.get_response": _a_turn,
    "verifiers.v1.clients.eval:EvalClient.get_response": _a_turn,
    "verifiers.v1.clients.eval:EvalClient.relay": _a_turn,
}
