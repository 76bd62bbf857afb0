"""Agents of Microsoft's Agent Framework."""

from __future__ import annotations

from typing import Any

from agent_framework import Agent, tool
from agent_framework.openai import OpenAIChatCompletionClient
from program import BASE_URL, MODEL, lookup, main, shell

TOOLS = [tool(shell, approval_mode="never_require"), tool(lookup, approval_mode="never_require")]


def agent(instructions: str = "You help.", **options: Any) -> Agent:
    client = OpenAIChatCompletionClient(model=MODEL, base_url=BASE_URL, api_key="key")
    options = {"tools": TOOLS, **options}
    return Agent(client, instructions, **options)


async def run(task: str = "PLAN-two", **options: Any) -> str:
    return (await agent(**options).run(task)).text


async def stream() -> str:
    updates = agent().run("PLAN-two", stream=True)
    return "".join([update.text async for update in updates])


async def children() -> str:
    helper = agent("PLAN-helper", name="helper", description="Helps.")
    return await run("PLAN-delegate", tools=[helper.as_tool()])


main({"stream": stream, "children": children}, run_async=run)
