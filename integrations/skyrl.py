"""Which functions of SkyRL run a trajectory, ask for its tokens and step its environment.

`frameworks` has them followed. The engines know a trajectory by its `X-Session-ID` already; this
numbers its turns, times its tools, and tells the engines its end, of which SkyRL tells the router.
Source: skyrl 0.3.0, train/generators/skyrl_gym_generator.py and
backends/skyrl_train/inference_servers/remote_inference_client.py.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import agentkv
from agentkv.client.job import Job
from agentkv.client.patches import Method, Patch
from agentkv.client.replies import Usage
from agentkv.client.server import JobLink, server_at

from .rollouts import TokensTurn, a_trajectory
from .runs import Arguments, Wrap, a_tool


@dataclass(frozen=True, slots=True)
class _ReleaseEverywhere(JobLink):
    """A job's way to several engines behind a router, which alone knows the one that has the job.

    Each is notified of its end. Tools are not reported as they start and end, since all engines but
    one would answer that they do not know the job; their durations go with the next turn.
    """

    engines: tuple[JobLink, ...] = ()

    def submit(self, method: str, path: str, body: Mapping[str, object] | None = None) -> None:
        if path.endswith("/release"):
            for engine in self.engines:
                engine.server.ask_in_background(engine)
                engine.submit(method, path, body)


def _link_to(server_urls: list[str], job: Job[Any]) -> JobLink:
    links = tuple(job.link_to(server_at(url), None, {}) for url in server_urls)
    first = links[0]
    if len(links) == 1 or isinstance(first, _ReleaseEverywhere):
        return first
    return _ReleaseEverywhere(
        first.server, first.transport, first.warns, first.note_savings, engines=links
    )


def _a_turn(original: Method, patch: Patch) -> Method:
    """`RemoteInferenceClient.generate`, which agent loops call with one prompt at a time."""

    @functools.wraps(original)
    async def generate(self: Any, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        session_ids: Sequence[Any] = input_batch.get("session_ids") or ()
        if not patch.is_active or len(session_ids) != 1:
            return await original(self, input_batch, *args, **kwargs)
        turn = TokensTurn(session_ids[0], self, input_batch.get("sampling_params") or {})
        if turn.job is None:
            return await original(self, input_batch, *args, **kwargs)
        with turn:
            await turn.open(functools.partial(_link_to, self.server_urls))
            tagged = {**input_batch, "sampling_params": turn.params}
            output = await original(self, tagged, *args, **kwargs)
            turn.took(lambda: _usage(input_batch, output))
            return output

    return generate


def _usage(asked: Any, output: Any) -> tuple[Usage, bool]:
    """The tokens of the prompt and the reply, and whether the turn was aborted."""
    num_prompt_tokens = len(asked["prompt_token_ids"][0])
    usage = Usage(num_prompt_tokens, None, len(output["response_ids"][0]))
    return usage, output["stop_reasons"][0] == "abort"


def _step(call: Arguments) -> tuple[str, Any] | None:
    """The call in the reply that an environment is given, or else the environment itself."""
    function = call["func"]
    if getattr(function, "__name__", "") != "step":
        return None
    found = agentkv.parse_tool_calls({"content": call["args"][0]})
    return (found[0].name, dict(found[0].arguments)) if found else (_name_of(function), {})


def _name_of(step: Any) -> str:
    return type(getattr(step, "__self__", None)).__name__


_GENERATORS = "skyrl.train.generators"
_SERVERS = "skyrl.backends.skyrl_train.inference_servers"

HOOKS: Mapping[str, Wrap] = {
    f"{_GENERATORS}.skyrl_gym_generator:SkyRLGymGenerator.agent_loop": a_trajectory,
    f"{_GENERATORS}.skyrl_vlm_generator:SkyRLVLMGymGenerator.agent_loop": a_trajectory,
    f"{_GENERATORS}.skyrl_gym_generator:SkyRLGymGenerator._run_in_executor_if_available": a_tool(
        _step
    ),
    f"{_SERVERS}.remote_inference_client:RemoteInferenceClient.generate": _a_turn,
}
