"""The functions of each framework that run an agent or call a tool.

`instrument` replaces them with the wrappers of `runs`. Nothing here imports a framework; one that
the program imports later is replaced then. One table, a framework a section.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

from agentkv.client import session
from agentkv.client.patches import Patch

from .lm15 import a_request
from .runs import Arguments, Wrap, a_run, a_tool, a_turn, until

logger = logging.getLogger(__name__)


def _smolagents_tool(call: Arguments) -> tuple[str, Any] | None:
    """A tool of smolagents; `final_answer` is how the model ends a run."""
    name = call["tool_name"]
    return None if name == "final_answer" else (name, call["arguments"])


def _dspy_tool(call: Arguments) -> tuple[str, Any] | None:
    """A tool of DSPy; `finish` is how the model ends a run."""
    name = call["self"].name
    return None if name == "finish" else (name, call["kwargs"])


def _follow_response_stream(
    stream: Any, active: Callable[[], AbstractContextManager[None]], end: Callable[[], None]
) -> bool:
    """Make a run of agent-framework last as long as its stream of updates."""
    if not hasattr(stream, "with_pull_context_manager"):
        return False
    stream.with_pull_context_manager(active).with_cleanup_hook(end)
    weakref.finalize(stream, end)  # one that nobody reads to its end
    return True


def _inspect_agent(call: Arguments) -> object:
    """An agent of inspect_ai that runs within a sample, as a tool, a handoff or by `run`."""
    return object() if call["type"] == "agent" else None


def _mini_swe_tool(call: Arguments) -> tuple[str, Any] | None:
    """The commands of a reply, which run one after another."""
    actions = call["message"].get("extra", {}).get("actions", ())
    commands = [action.get("command", "") for action in actions]
    return ("bash", {"command": "\n".join(commands)}) if commands else None


_named_tool = a_tool(lambda call: (call["self"].name, call["kwargs"]))
"""A tool that is called with its arguments as keywords."""
_langchain_tool = a_tool(lambda call: (call["self"].name, call["tool_input"]))
_agno_tool = a_tool(lambda call: (call["self"].function.name, call["self"].arguments))
_llama_index_tool = a_tool(lambda call: (call["tool"].metadata.get_name(), call["tool_input"]))
_python_of_a_step = a_tool(lambda call: ("python_interpreter", {"code": call["code_action"]}))


def _each(owner: str, names: str, wrap: Wrap) -> dict[str, Wrap]:
    """Hooks that follow several methods of a class alike."""
    return {f"{owner}.{name}": wrap for name in names.split()}


HOOKS: Mapping[str, Mapping[str, Wrap]] = {
    # A handoff gives the turns of a run to another agent.
    "openai-agents": {
        "agents.run:AgentRunner.run": a_run(lambda call: call["starting_agent"]),
        "agents.run:AgentRunner.run_streamed": a_run(
            lambda call: call["starting_agent"], follow=until(lambda result: result.run_loop_task)
        ),
        "agents.run:run_single_turn": a_turn(lambda call: call["bindings"].public_agent),
        "agents.run_internal.run_loop:run_single_turn_streamed": a_turn(
            lambda call: call["bindings"].public_agent
        ),
        "agents.run_internal.tool_execution:"
        "_FunctionToolBatchExecutor._invoke_tool_and_run_post_invoke": a_tool(
            lambda call: (call["func_tool"].name, call["tool_call"].arguments)
        ),
    },
    # create_agent makes a graph; a graph within a graph is a child job.
    "langgraph": {
        **_each("langgraph.pregel.main:Pregel", "stream astream", a_run()),
    },
    "langchain-core": {
        **_each("langchain_core.tools.base:BaseTool", "run arun", _langchain_tool),
    },
    # run, run_sync, run_stream and run_stream_events all go through iter.
    "pydantic-ai-slim": {
        "pydantic_ai.agent:Agent.iter": a_run(),
        "pydantic_ai.tool_manager:ToolManager.execute_tool_call": a_tool(
            lambda call: (call["validated"].call.tool_name, call["validated"].validated_args)
        ),
    },
    # In a code agent, the code of a step is the tool call.
    "smolagents": {
        "smolagents.agents:MultiStepAgent.run": a_run(),
        "smolagents.agents:ToolCallingAgent.execute_tool_call": a_tool(_smolagents_tool),
        "smolagents.local_python_executor:LocalPythonExecutor.__call__": _python_of_a_step,
        "smolagents.remote_executors:RemotePythonExecutor.__call__": _python_of_a_step,
    },
    # An agent of agents, and one that transfers control, has theirs run in its own run.
    "google-adk": {
        "google.adk.runners:Runner.run_async": a_run(),
        "google.adk.agents.base_agent:BaseAgent.run_async": a_turn(lambda call: call["self"]),
        "google.adk.flows.llm_flows.tools._caller:_execute_single_prepared_call": a_tool(
            lambda call: (call["prepared_call"].tool.name, call["prepared_call"].function_args)
        ),
    },
    "strands-agents": {
        "strands.agent.agent:Agent.stream_async": a_run(),
        "strands.multiagent.graph:Graph.stream_async": a_run(),
        "strands.multiagent.swarm:Swarm.stream_async": a_run(),
        "strands.tools.executors._executor:_run_tool": a_tool(
            lambda call: (call["ctx"].tool_use["name"], call["ctx"].tool_use["input"])
        ),
    },
    "agno": {
        **_each("agno.agent.agent:Agent", "run arun", a_run()),
        **_each("agno.team.team:Team", "run arun", a_run()),
        **_each("agno.tools.function:FunctionCall", "execute aexecute", _agno_tool),
    },
    "llama-index-core": {
        "llama_index.core.agent.workflow.base_agent:BaseWorkflowAgent.run": a_run(
            follow=until(lambda handler: handler._result_task)
        ),
        "llama_index.core.agent.workflow.base_agent:BaseWorkflowAgent._call_tool": (
            _llama_index_tool
        ),
        "llama_index.core.agent.workflow.multi_agent_workflow:AgentWorkflow.run": a_run(
            lambda call: call["self"].agents[call["self"].root_agent],
            follow=until(lambda handler: handler._result_task),
        ),
        "llama_index.core.agent.workflow.multi_agent_workflow:AgentWorkflow._call_tool": (
            _llama_index_tool
        ),
        **{
            f"llama_index.core.agent.workflow.{module}:{name}.take_step": a_turn(
                lambda call: call["self"]
            )
            for module, name in (
                ("function_agent", "FunctionAgent"),
                ("react_agent", "ReActAgent"),
                ("codeact_agent", "CodeActAgent"),
            )
        },
    },
    "dspy": {
        **_each("dspy.predict.react:ReAct", "forward aforward", a_run()),
        **_each("dspy.adapters.types.tool:Tool", "__call__ acall", a_tool(_dspy_tool)),
        "dspy._vendor.lm15.transports._sync:StdlibTransport.stream": a_request,
        "dspy._vendor.lm15.transports._async:StdlibAsyncTransport._do_stream": a_request,
    },
    "haystack-ai": {
        **_each("haystack.components.agents.agent:Agent", "run run_async", a_run()),
        **_each("haystack.tools.tool:Tool", "invoke invoke_async", _named_tool),
    },
    # Each task of a crew is a child job, since each begins a conversation of its own.
    "crewai": {
        **_each("crewai.crew:Crew", "kickoff akickoff", a_run()),
        **_each(
            "crewai.agent.core:Agent",
            "execute_task aexecute_task kickoff kickoff_async akickoff",
            a_run(),
        ),
        **_each("crewai.tools.base_tool:BaseTool", "run arun", _named_tool),
        **_each("crewai.tools.base_tool:Tool", "run arun", _named_tool),
        **_each(
            "crewai.tools.structured_tool:CrewStructuredTool",
            "invoke ainvoke",
            a_tool(lambda call: (call["self"].name, call["input"])),
        ),
    },
    "agent-framework-core": {
        "agent_framework._agents:Agent.run": a_run(follow=_follow_response_stream),
        "agent_framework._tools:FunctionTool.invoke": a_tool(
            lambda call: (call["self"].name, call["arguments"])
        ),
    },
    # A sample is a job, with solvers of any kind.
    "inspect-ai": {
        "inspect_ai._eval.task.run:task_run_sample": a_run(lambda call: object()),
        "inspect_ai.agent._run:span": a_run(_inspect_agent),
        "inspect_ai.agent._as_tool:span": a_run(_inspect_agent),
        "inspect_ai.model._call_tools:span": a_run(_inspect_agent),
        "inspect_ai.model._call_tools:call_tool": a_tool(
            lambda call: (call["call"].function, call["call"].arguments)
        ),
    },
    "mini-swe-agent": {
        "minisweagent.agents.default:DefaultAgent.run": a_run(),
        "minisweagent.agents.default:DefaultAgent.execute_actions": a_tool(_mini_swe_tool),
    },
    # A trainer with the engine in its own process; others send a header of their own.
    "openrlhf": {
        "openrlhf.utils.agent:MultiTurnAgentExecutor.execute": a_run(lambda call: object()),
    },
}
"""Distribution -> `module:Class.method` -> what a call of it is."""

_patches = {
    distribution: [Patch(target, wrap) for target, wrap in hooks.items()]
    for distribution, hooks in HOOKS.items()
}


GROUP = "agentkv.frameworks"
"""Entry points by which a package offers hooks of its own, each a mapping like those of HOOKS."""
_offered: dict[str, list[Patch]] = {}


def packages() -> list[str]:
    """The top-level packages of the frameworks."""
    return sorted({target.partition(".")[0] for hooks in HOOKS.values() for target in hooks})


def instrument() -> None:
    """Patch httpx and every supported framework, so that agents' runs become jobs.

    Frameworks of other packages, too, that offer hooks as entry points of the group
    `agentkv.frameworks`.

    Call it once, at start-up; a second call does nothing. From then on each run of a known
    framework's agent is a job: opened when it starts, released when it ends, raises or is
    cancelled. Each tool call is timed and reported, sub-agents are child jobs, and each request to
    a model over httpx is a turn of the job that is current. A run inside of a session of the
    caller's is that session's job.

    Packages that are imported later count too, and none is imported because of it. `instrumented()`
    lists what is replaced by now, `uninstrument()` restores it all.
    """
    session.instrument()
    for distribution, patches in _patches.items():
        # not by the package's name alone: a program may have its own `agents`
        if _is_installed(distribution):
            for patch in patches:
                patch.install()
    for point in entry_points(group=GROUP):
        try:
            if point.name not in _offered:
                _offered[point.name] = []  # one that fails is not tried again
                _offered[point.name] = [Patch(*hook) for hook in point.load().items()]
            for patch in _offered[point.name]:
                patch.install()
        except Exception:  # somebody else's package, which must not end the program
            logger.warning("agentkv: the hooks %s of %s fail", point.name, GROUP, exc_info=True)


def _is_installed(distribution: str) -> bool:
    try:
        return bool(version(distribution))
    except PackageNotFoundError:
        return False
