"""Agents of Strands."""

from __future__ import annotations

from typing import Any

from program import BASE_URL, MODEL, lookup, main, shell
from strands import Agent, tool
from strands.models.openai import OpenAIModel

TOOLS = [tool(shell), tool(lookup)]


def agent(instructions: str = "You help.", **options: Any) -> Agent:
    model = OpenAIModel(client_args={"base_url": BASE_URL, "api_key": "key"}, model_id=MODEL)
    options = {"tools": TOOLS, **options}
    return Agent(model=model, system_prompt=instructions, callback_handler=None, **options)


def run(task: str = "PLAN-two", **options: Any) -> str:
    return str(agent(**options)(task))


async def run_async(task: str = "PLAN-two") -> str:
    return str(await agent().invoke_async(task))


async def stream() -> str:
    events = [event async for event in agent().stream_async("PLAN-two")]
    return str(events[-1]["result"])


def children() -> str:
    helper = agent("PLAN-helper", name="helper")

    @tool
    def ask_helper(task: str) -> str:
        """Ask the helper."""
        return str(helper(task))

    return run("PLAN-delegate", tools=[ask_helper])


main({"stream": stream, "children": children}, run=run, run_async=run_async)
