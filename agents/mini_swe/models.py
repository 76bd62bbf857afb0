"""Which server litellm sends a model's calls to, and one such call as a turn of a job."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import litellm
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

from agentkv.client.context import job_made_current
from agentkv.client.job import Job
from agentkv.client.replies import read_usage
from agentkv.client.server import KnownServer, known_server
from agentkv.client.tagged_call import TaggedCall

from .jobs import JobOfModel, TurnLog

logger = logging.getLogger(__name__)

_URL_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "openai": ("OPENAI_BASE_URL", "OPENAI_API_BASE"),
    "hosted_vllm": ("HOSTED_VLLM_API_BASE",),
    "litellm_proxy": ("LITELLM_PROXY_API_BASE",),
}
_KEY_VARIABLES: Mapping[str, str] = {
    "openai": "OPENAI_API_KEY",
    "hosted_vllm": "HOSTED_VLLM_API_KEY",
    "litellm_proxy": "LITELLM_PROXY_API_KEY",
}
"""Where litellm looks for what a call does not name, by provider.
Source: litellm/main.py, and chat/transformation.py of hosted_vllm and litellm_proxy (1.105)."""

_warned_models: set[str] = set()


@dataclass(frozen=True, slots=True)
class BodyExtras:
    """litellm's `extra_body` in the shape in which a tagged call looks for the SDK's options."""

    extra_json: Mapping[str, Any] = field(default_factory=dict)

    def model_copy(self, *, update: Mapping[str, Any]) -> Self:
        """The same with other extras."""
        return type(self)(**update)


def tagged_call(
    job: Job[Any], model_name: str, call_options: Mapping[str, Any], server_url: str | None
) -> TaggedCall | None:
    """The turn of a job that a litellm call is to be, its server asked for the plugin.

    None where the call names no server that could have it, and where the caller tags by hand.
    Waits for a server not met before, 3 s or so at most.
    """
    extras = call_options.get("extra_body") or {}
    if "job_id" in extras:
        return None
    server = _server_of(model_name, call_options, server_url)
    if server is None:
        if model_name not in _warned_models:
            _warned_models.add(model_name)
            logger.warning(
                "agentkv: %s names no server of its own (`api_base`, or `agentkv_server` for one "
                "behind a gateway). Calls go out untouched.",
                model_name,
            )
        return None
    call = TaggedCall(job, server, BodyExtras(extras))
    server.ask()
    call.check_server()
    return call


def _server_of(
    model_name: str, call_options: Mapping[str, Any], server_url: str | None
) -> KnownServer | None:
    """The server as litellm finds it; None for a provider's own endpoint."""
    provider = call_options.get("custom_llm_provider") or _provider(model_name)
    url = server_url or call_options.get("api_base") or call_options.get("base_url")
    for variable in () if url else _URL_VARIABLES.get(provider, ()):
        url = url or litellm.get_secret_str(variable)
    if not url:
        return None
    key = call_options.get("api_key")
    if key is None and provider in _KEY_VARIABLES:
        key = litellm.get_secret_str(_KEY_VARIABLES[provider])
    authorization = {} if key is None else {"Authorization": f"Bearer {key}"}
    server = known_server(str(url))
    headers = {**authorization, **(call_options.get("extra_headers") or {})}
    server.reach_by(None, headers)
    return server


def _provider(model_name: str) -> str:
    """What stands before the first slash; litellm takes a bare name for OpenAI's most often."""
    return model_name.partition("/")[0] if "/" in model_name else "openai"


# MERGED: mini-swe-agent's litellm models with their calls tagged as turns of a job.
# MERGED: Prompts, parsing, retries, templates and costs are those of the base classes: what is
# MERGED: sent differs
# MERGED: by the tags, and only to a server that has the plugin.

logger = logging.getLogger(__name__)

Message = dict[str, Any]

_has_logged_failure = False


class AgentKVModel(LitellmModel):
    """mini-swe-agent's tool-call model, tagged; for one agent loop at a time.

    agentkv_server: the vLLM server, where calls reach it through a gateway.
    agentkv_job_id: the job's id on the wire, exactly; made up if not given.
    agentkv_run_id: goes into ids that are made up, to tell runs apart.

    All other arguments are the base class's. Raises TagError for a job id that is none.
    """

    def __init__(
        self,
        *,
        agentkv_server: str | None = None,
        agentkv_run_id: str | None = None,
        agentkv_job_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.agentkv_job = JobOfModel(
            job_id=agentkv_job_id, run_id=agentkv_run_id, server=agentkv_server
        )
        self.agentkv_turns = TurnLog()
        self._num_messages = 0

    def query(self, messages: list[Message], **kwargs: Any) -> Message:
        """The base class's query, as a turn."""
        self._notice_new_conversation(messages)
        job = self.agentkv_job.current()
        with self.agentkv_turns.query(job):
            message: Message = super().query(messages, **kwargs)
        with _loop_goes_on():
            self.agentkv_turns.begin_tool(job, _commands_of(message))
        return message

    def format_observation_messages(
        self, message: Message, outputs: list[Message], template_vars: Message | None = None
    ) -> list[Message]:
        """The base class's observations; the tools are done by now."""
        with _loop_goes_on():
            self.agentkv_turns.end_tool()
            self._read_limits(template_vars or {})
        observations: list[Message] = super().format_observation_messages(
            message, outputs, template_vars
        )
        return observations

    def format_message(self, **kwargs: Any) -> Message:
        """The base class's message; an agent asks for one of role `exit` when an error ends it."""
        if kwargs.get("role") == "exit":
            with _loop_goes_on():
                self.agentkv_turns.end_tool()
                self.agentkv_job.end_own()
        formatted: Message = super().format_message(**kwargs)
        return formatted

    def serialize(self) -> dict[str, Any]:
        """The base class's part of the trajectory, and the turns."""
        serialized: dict[str, Any] = super().serialize()
        serialized["info"]["agentkv"] = {"turns": self.agentkv_turns.rows}
        return serialized

    def begin_conversation(self) -> None:
        """What follows is another job, whose turns start anew."""
        self.agentkv_turns.end_tool()
        self.agentkv_job.end_own()
        self.agentkv_turns = TurnLog()

    def _query(self, messages: list[Message], **kwargs: Any) -> Any:
        """One attempt; a further one after an error carries the same turn number."""
        job, call = self.agentkv_job.current(), None
        with _loop_goes_on():
            options = self.config.model_kwargs | kwargs
            call = tagged_call(job, self.config.model_name, options, self.agentkv_job.server)
        if call is None:
            with job_made_current(None):  # a session around us is not to tag it either
                response = super()._query(messages, **kwargs)
        else:
            response = self._query_as_turn(call, messages, kwargs)
        with _loop_goes_on():
            self.agentkv_turns.note_reply(read_usage(response))
        return response

    def _query_as_turn(self, call: TaggedCall, messages: list[Message], kwargs: Message) -> Any:
        with call:
            if call.options.extra_json:
                kwargs = {**kwargs, "extra_body": call.options.extra_json}
            response = super()._query(messages, **kwargs)
        call.read(response)
        return response

    def _notice_new_conversation(self, messages: list[Message]) -> None:
        """A model may serve one task after another; a retry of the first call adds a message."""
        num_messages, self._num_messages = self._num_messages, len(messages)
        has_reply = any(message.get("role") == "assistant" for message in messages)
        is_new = len(messages) < num_messages and not has_reply
        if is_new and not self.agentkv_job.is_entered:
            self.begin_conversation()

    def _read_limits(self, template_vars: Message) -> None:
        """mini-swe-agent hands its agent's settings and call count to the templates."""
        step_limit, num_calls = template_vars.get("step_limit"), template_vars.get("n_model_calls")
        if isinstance(step_limit, int) and isinstance(num_calls, int):
            self.agentkv_turns.limit_calls(step_limit, num_calls)


class AgentKVTextModel(AgentKVModel, LitellmTextbasedModel):
    """mini-swe-agent's model for commands in fenced text, tagged."""


def _commands_of(message: Message) -> list[str]:
    actions = (message.get("extra") or {}).get("actions") or ()
    commands = [action.get("command") for action in actions]
    return [command for command in commands if isinstance(command, str)]


@contextmanager
def _loop_goes_on() -> Iterator[None]:
    """What is ours must not end the agent's loop: the first error is logged, none gets out."""
    global _has_logged_failure
    try:
        yield
    except Exception:
        if not _has_logged_failure:
            _has_logged_failure = True
            logger.exception("agentkv failed beside a call, which is not affected")
