"""Agents and teams of Agno."""

from __future__ import annotations

from typing import Any

from agno.agent import Agent
from agno.models.openai.like import OpenAILike
from agno.team import Team
from program import BASE_URL, MODEL, lookup, main, shell


def model() -> OpenAILike:
    return OpenAILike(id=MODEL, base_url=BASE_URL, api_key="key")


def agent(instructions: str = "You help.", **options: Any) -> Agent:
    options = {"tools": [shell, lookup], **options}
    return Agent(model=model(), instructions=instructions, telemetry=False, **options)


def run(task: str = "PLAN-two") -> str:
    return agent().run(task).content


async def run_async(task: str = "PLAN-two") -> str:
    return (await agent().arun(task)).content


def stream() -> str:
    return "".join(event.content or "" for event in agent().run("PLAN-two", stream=True))


async def stream_async() -> str:
    events = agent().arun("PLAN-two", stream=True)
    return "".join([event.content or "" async for event in events])


def children() -> str:
    helper = agent("PLAN-helper", name="helper")

    def ask_helper(task: str) -> str:
        """Ask the helper."""
        return helper.run(task).content

    return agent(tools=[ask_helper]).run("PLAN-delegate").content


def handoff() -> str:
    helper = agent("PLAN-helper", name="helper", role="helps")
    team = Team(members=[helper], model=model(), telemetry=False)
    return team.run("PLAN-member").content


main(
    {"stream": stream, "stream_async": stream_async, "children": children, "handoff": handoff},
    run=run,
    run_async=run_async,
)
