"""Both agents of smolagents: one calls tools, one writes code."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from program import BASE_URL, MODEL, lookup, main, shell
from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool

TOOLS = [tool(shell), tool(lookup)]


def agent(kind: Any = ToolCallingAgent, instructions: str = "You help.", **options: Any) -> Any:
    options = {"tools": TOOLS, "verbosity_level": 0, **options}
    model = OpenAIServerModel(MODEL, api_base=BASE_URL, api_key="key")
    return kind(model=model, instructions=instructions, **options)


def run(task: str = "PLAN-two", **options: Any) -> Any:
    return agent(**options).run(task)


def stream() -> Any:
    *_, last = agent(stream_outputs=True).run("PLAN-two", stream=True)
    return last.output


def children(kind: Any = ToolCallingAgent) -> Any:
    helper = agent(instructions="PLAN-helper", name="helper", description="Helps.")
    return run("PLAN-delegate", kind=kind, tools=[], managed_agents=[helper])


def many() -> list[Any]:
    with ThreadPoolExecutor() as pool:
        return list(pool.map(run, ["PLAN-two"] * 3))


main(
    {
        "stream": stream,
        "code": lambda: run("PLAN-code", kind=CodeAgent),
        "children": children,
        "many": many,
        "fails": lambda: run("PLAN-fails"),
    },
    run=run,
)
