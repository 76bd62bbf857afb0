"""Makes each agent loop of verl a job of the engine that it runs on.

The entry point `verl.plugins` imports this module with verl, in each of its processes, so importing
it has verl's functions followed. It imports no verl: that is half imported then.
Source: verl 0.9.1, experimental/agent_loop/ and workers/rollout/llm_server.py.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from agentkv.client.patches import Method, Patch
from agentkv.client.replies import Usage
from agentkv.client.server import server_at

from .rollouts import TokensTurn, a_trajectory, after_a_trajectory
from .runs import Wrap, a_tool

_turn: ContextVar[TokensTurn | None] = ContextVar("agentkv_verl_turn", default=None)
"""The prompt that waits for the balancer to say which engine it goes to."""


def _a_turn(original: Method, patch: Patch) -> Method:
    """`LLMServerClient.generate`: its `request_id`, by which it is sticky, is the job's id."""

    @functools.wraps(original)
    async def generate(self: Any, request_id: Any, *args: Any, **kwargs: Any) -> Any:
        params = kwargs.get("sampling_params")
        if not patch.is_active or not isinstance(params, Mapping):
            return await original(self, request_id, *args, **kwargs)
        turn = TokensTurn(request_id, self, params)
        if turn.job is None:
            return await original(self, request_id, *args, **kwargs)
        token = _turn.set(turn)
        try:
            with turn:
                kwargs["sampling_params"] = turn.params
                output = await original(self, request_id, *args, **kwargs)
                turn.took(lambda: _usage(output, kwargs.get("prompt_ids")))
                return output
        finally:
            _turn.reset(token)

    return generate


def _usage(output: Any, prompt_ids: Any) -> tuple[Usage, bool]:
    """The tokens of the prompt and the reply, and whether the turn was aborted."""
    cached_tokens = output.extra_fields.get("num_cached_tokens")
    usage = Usage(len(prompt_ids), cached_tokens, len(output.token_ids))
    return usage, output.stop_reason in ("abort", "aborted")


def _to_an_engine(original: Method, patch: Patch) -> Method:
    """`LLMServerClient._acquire_server`: the name of an engine is the address of its API server."""

    @functools.wraps(original)
    async def acquire_server(self: Any, *args: Any, **kwargs: Any) -> Any:
        acquired = await original(self, *args, **kwargs)
        turn = _turn.get() if patch.is_active else None
        if turn is not None and turn.job is not None:
            url = f"http://{acquired[0]}"
            await turn.open(lambda job: job.link_to(server_at(url), None, {}))
        return acquired

    return acquire_server


_LOOPS = "verl.experimental.agent_loop"
_CLIENT = "verl.workers.rollout.llm_server:LLMServerClient"

HOOKS: Mapping[str, Wrap] = {
    f"{_LOOPS}.agent_loop:AgentLoopWorker._run_agent_loop": a_trajectory,
    # computes the reward, which may take longer than the loop
    f"{_LOOPS}.agent_loop:AgentLoopWorker._agent_loop_postprocess": after_a_trajectory,
    f"{_LOOPS}.tool_agent_loop:ToolAgentLoop._call_tool": a_tool(
        lambda call: (call["tool_call"].name, call["tool_call"].arguments)
    ),
    f"{_CLIENT}.generate": _a_turn,
    f"{_CLIENT}._acquire_server": _to_an_engine,
}

for _target, _wrap in HOOKS.items():
    Patch(_target, _wrap).install()
