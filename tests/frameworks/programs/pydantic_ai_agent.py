"""Agents of pydantic-ai."""

from __future__ import annotations

from program import MODEL, lookup, main, shell
from pydantic_ai import Agent

agent = Agent(f"openai-chat:{MODEL}", instructions="You help.", tools=[shell, lookup])


def run(task: str = "PLAN-two") -> str:
    return agent.run_sync(task).output


async def run_async(task: str = "PLAN-two") -> str:
    return (await agent.run(task)).output


async def stream() -> str:
    async with agent.run_stream("PLAN-two") as result:
        return await result.get_output()


async def stream_events() -> str:
    async with agent.run_stream_events("PLAN-two") as stream:
        events = [event async for event in stream]
    return events[-1].result.output


async def iterated() -> str:
    async with agent.iter("PLAN-two") as run:
        async for _ in run:
            pass
    return run.result.output


async def children() -> str:
    helper = Agent(f"openai-chat:{MODEL}", instructions="PLAN-helper", tools=[shell])
    lead = Agent(f"openai-chat:{MODEL}", instructions="You help.")

    @lead.tool_plain
    async def ask_helper(task: str) -> str:
        """Ask the helper."""
        return (await helper.run(task)).output

    return (await lead.run("PLAN-delegate")).output


main(
    {"stream": stream, "stream_events": stream_events, "iterated": iterated, "children": children},
    run=run,
    run_async=run_async,
)
