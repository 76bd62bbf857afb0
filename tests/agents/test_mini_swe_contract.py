"""Our mini-swe-agent classes against those they derive from, on the same scripted replies.

What the loop sees is compared whole: messages, actions, errors, costs, trajectory. So is what the
server sees, but for the tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

import agentkv
from agentkv.agents.mini_swe import AgentKVAgent, AgentKVModel, AgentKVTextModel
from agentkv.protocol import TAG_FIELDS
from tests.agents.mini_swe_replies import AGENT_CONFIG, SUBMIT, fenced, model_config, tool_call
from tests.scripted_server import ScriptedReply, ScriptedServer

pytestmark = pytest.mark.usefixtures("clean_slate")

NO_CALL = ScriptedReply("I would rather talk.")
WRONG_TOOL = tool_call("ls", name="python")
BAD_JSON = tool_call("", arguments="{nonsense")
NO_COMMAND = tool_call("", arguments='{"text": "ls"}')
ODD_COMMAND = tool_call("", arguments='{"command": 5}')

LOOPS: dict[str, tuple[Sequence[ScriptedReply], dict[str, Any]]] = {
    "commands": ([tool_call("echo a"), tool_call("echo b", "exit 3"), tool_call(SUBMIT)], {}),
    "format errors": ([NO_CALL, WRONG_TOOL, tool_call("true"), BAD_JSON, tool_call(SUBMIT)], {}),
    "odd arguments": ([NO_COMMAND, ODD_COMMAND, tool_call(SUBMIT)], {}),
    "only format errors": ([NO_CALL], {}),
    "step limit": ([tool_call("true")], {"step_limit": 2}),
    "failed submission": ([tool_call(f"{SUBMIT}; false"), tool_call(SUBMIT)], {}),
    "many submissions": ([tool_call("true", SUBMIT, "true")], {}),
    "long output": ([tool_call("seq 20000"), tool_call(SUBMIT)], {}),
}
TEXT_LOOPS: dict[str, tuple[Sequence[ScriptedReply], dict[str, Any]]] = {
    "commands": ([fenced("echo a"), fenced("exit 3"), fenced(SUBMIT)], {}),
    "format errors": ([fenced(), fenced("ls", "ls"), fenced("true"), fenced(SUBMIT)], {}),
    "only format errors": ([fenced()], {}),
    "step limit": ([fenced("true")], {"step_limit": 1}),
}
CASES = [(LitellmModel, AgentKVModel, name, *loop) for name, loop in LOOPS.items()] + [
    (LitellmTextbasedModel, AgentKVTextModel, name, *loop) for name, loop in TEXT_LOOPS.items()
]
CASE_IDS = [f"{base.__name__}-{name}" for base, _, name, *_ in CASES]


def comparable(value: Any, server: ScriptedServer) -> Any:
    """Without what differs from one run to the next: times, the port, and the turns we add."""
    if isinstance(value, dict):
        left_out = {"timestamp", "agentkv", "model_type", "agent_type", "traceback", *TAG_FIELDS}
        return {k: comparable(v, server) for k, v in value.items() if k not in left_out}
    if isinstance(value, list | tuple):
        return [comparable(item, server) for item in value]
    return value.replace(server.root_url, "URL") if isinstance(value, str) else value


def played(
    agent_class: type,
    model_class: type,
    replies: Sequence[ScriptedReply],
    *,
    failures: Sequence[int] = (),
    has_plugin: bool = True,
    provider: str = "hosted_vllm",
    **options: Any,
) -> dict[str, Any]:
    """Everything there is to see of one run."""
    with ScriptedServer(replies, has_plugin=has_plugin) as server:
        server.fail_next(*failures)
        model = model_class(**model_config(server, model_name=f"{provider}/m"))
        agent = agent_class(model, LocalEnvironment(), **{**AGENT_CONFIG, **options})
        error = None
        try:
            result = agent.run("do it")
        except Exception as raised:
            result, error = None, raised
        agentkv.flush(timeout_s=20)
        seen = {
            "result": result,
            "error": None if error is None else [type(error).__name__, str(error)],
            "num_calls": agent.n_calls,
            "cost": agent.cost,
            "messages": agent.messages,
            "trajectory": agent.save(None),
            "requests": [turn.body for turn in server.turns],
        }
        is_ours = issubclass(model_class, AgentKVModel)
        assert any("job_id" in turn.tags for turn in server.turns) == is_ours
        return dict(comparable(seen, server))


@pytest.mark.parametrize(("base", "ours", "name", "replies", "options"), CASES, ids=CASE_IDS)
def test_the_loop_is_that_of_the_base_classes(
    base: type, ours: type, name: str, replies: Sequence[ScriptedReply], options: dict[str, Any]
) -> None:
    """Our model in our agent gives the base classes' loop, with every call tagged."""
    stock = played(DefaultAgent, base, replies, **options)
    assert played(AgentKVAgent, ours, replies, **options) == stock
    assert stock["num_calls"] > 0


@pytest.mark.parametrize(
    ("agent_class", "has_plugin", "provider"),
    [
        (DefaultAgent, True, "hosted_vllm"),
        (AgentKVAgent, False, "hosted_vllm"),
        (AgentKVAgent, True, "openai"),
    ],
)
def test_the_loop_is_the_same_everywhere(
    agent_class: type, has_plugin: bool, provider: str
) -> None:
    """The loop does not depend on the agent, the plugin or litellm's path to the server."""
    replies, _ = LOOPS["format errors"]
    stock = played(DefaultAgent, LitellmModel, replies, provider=provider)
    ours = played(agent_class, AgentKVModel, replies, provider=provider, has_plugin=has_plugin)
    assert ours == stock


@pytest.mark.parametrize("provider", ["hosted_vllm", "openai"])
@pytest.mark.parametrize("failures", [[400], [401], [429], [500], [500, 503]])
def test_errors_and_retries_are_those_of_the_base_class(
    monkeypatch: pytest.MonkeyPatch, provider: str, failures: list[int]
) -> None:
    """Our model retries as often, and the error that ends the loop is the base class's."""
    monkeypatch.setenv("MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT", str(2 * len(failures) - 1))
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)
    replies, how = [tool_call(SUBMIT)], {"failures": failures, "provider": provider}
    stock = played(DefaultAgent, LitellmModel, replies, **how)
    assert played(AgentKVAgent, AgentKVModel, replies, **how) == stock
    assert (stock["error"] is None, len(stock["requests"])) == (
        (True, 3) if len(failures) > 1 else (False, 1)
    )


@pytest.mark.parametrize(
    ("base", "ours"), [(LitellmModel, AgentKVModel), (LitellmTextbasedModel, AgentKVTextModel)]
)
def test_the_settings_are_those_of_the_base_class(base: type, ours: type) -> None:
    """Our arguments are not in the settings, and so not in the templates."""
    options: dict[str, Any] = {"model_name": "openai/m", "model_kwargs": {"temperature": 0.0}}
    stock, tagged = base(**options), ours(**options, agentkv_job_id="a", agentkv_run_id="r")
    assert type(tagged.config) is type(stock.config)
    assert tagged.get_template_vars() == stock.get_template_vars()
