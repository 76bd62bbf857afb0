"""Agents of the OpenAI Agents SDK."""

from __future__ import annotations

from typing import Any

from program import MODEL, lookup, main, shell

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

set_tracing_disabled(True)
TOOLS = [function_tool(shell), function_tool(lookup)]


def agent(name: str = "lead", instructions: str = "You help.", **options: Any) -> Agent[None]:
    return Agent(name=name, instructions=instructions, model=MODEL, tools=TOOLS, **options)


def helper() -> Agent[None]:
    return agent("helper", "PLAN-helper")


def run(task: str = "PLAN-two", **options: Any) -> str:
    return Runner.run_sync(agent(**options), task).final_output


async def run_async(task: str = "PLAN-two", **options: Any) -> str:
    return (await Runner.run(agent(**options), task)).final_output


async def stream(task: str = "PLAN-two", **options: Any) -> str:
    result = Runner.run_streamed(agent(**options), task)
    async for _ in result.stream_events():
        pass
    return result.final_output


def chat() -> str:
    set_default_openai_api("chat_completions")
    return run()


def children() -> str:
    set_default_openai_api("chat_completions")
    as_tool = helper().as_tool("ask_helper", "Ask the helper.")
    lead = agent().clone(tools=[as_tool])
    return Runner.run_sync(lead, "PLAN-delegate").final_output


def handoff() -> str:
    return run("PLAN-delegate", handoffs=[helper()])


async def handoff_streamed() -> str:
    return await stream("PLAN-delegate", handoffs=[helper()])


main(
    {
        "stream": stream,
        "chat": chat,
        "children": children,
        "handoff": handoff,
        "handoff_streamed": handoff_streamed,
    },
    run=run,
    run_async=run_async,
)
