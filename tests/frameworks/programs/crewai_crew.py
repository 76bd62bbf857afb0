"""A crew of CrewAI, whose tasks are child jobs, and an agent of it alone."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from program import BASE_URL, MODEL, lookup, main, shell

TOOLS = [tool("shell")(shell), tool("lookup")(lookup)]


def agent(instructions: str = "You help.", **options: Any) -> Agent:
    model = LLM(model=f"openai/{MODEL}", base_url=BASE_URL, api_key="key")
    options = {"tools": TOOLS, **options}
    return Agent(role="helper", goal="help", backstory=instructions, llm=model, **options)


def run(task: str = "PLAN-two", **options: Any) -> str:
    return agent(**options).kickoff(task).raw


async def run_async(task: str = "PLAN-two") -> str:
    return (await agent().kickoff_async(task)).raw


def children() -> str:
    @tool("ask_helper")
    def ask_helper(task: str) -> str:
        """Ask the helper."""
        return run(task, instructions="PLAN-helper")

    return run("PLAN-delegate", tools=[ask_helper])


def crew(task: str = "PLAN-two") -> str:
    one = agent()
    tasks = [Task(description=task, expected_output="text", agent=one)]
    return Crew(agents=[one], tasks=tasks).kickoff().raw


def many() -> list[str]:
    with ThreadPoolExecutor() as pool:
        return list(pool.map(run, ["PLAN-two"] * 3))


async def many_async() -> list[str]:
    return await asyncio.gather(*(run_async() for _ in range(3)))


main(
    {
        "crew": crew,
        "children": children,
        "many": many,
        "many_async": many_async,
        "fails": lambda: run("PLAN-fails"),
    },
    run=run,
    run_async=run_async,
)
