"""Agents of LangChain's create_agent, which are LangGraph graphs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from langchain.agents import create_agent
from langchain.tools import tool
from langchain_openai import ChatOpenAI
from program import MODEL, lookup, main, shell

TOOLS = [tool(shell), tool(lookup)]


def agent(instructions: str = "You help.", tools: Any = TOOLS) -> Any:
    return create_agent(ChatOpenAI(model=MODEL), tools, system_prompt=instructions)


def messages(task: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": task}]}


def answer(result: Any) -> str:
    return result["messages"][-1].content


def run(task: str = "PLAN-two", **options: Any) -> str:
    return answer(agent(**options).invoke(messages(task)))


async def run_async(task: str = "PLAN-two", **options: Any) -> str:
    return answer(await agent(**options).ainvoke(messages(task)))


def stream() -> str:
    chunks = agent().stream(messages("PLAN-two"), stream_mode="messages")
    return [chunk.content for chunk, _ in chunks if chunk.content][-1]


async def stream_async() -> str:
    chunks = agent().astream(messages("PLAN-two"), stream_mode="messages")
    return [chunk.content async for chunk, _ in chunks if chunk.content][-1]


def children() -> str:
    helper = agent("PLAN-helper")

    @tool
    def ask_helper(task: str) -> str:
        """Ask the helper."""
        return answer(helper.invoke(messages(task)))

    return run("PLAN-delegate", tools=[ask_helper])


def many_threads() -> list[str]:
    with ThreadPoolExecutor() as pool:
        return list(pool.map(run, ["PLAN-two"] * 3))


main(
    {
        "stream": stream,
        "stream_async": stream_async,
        "children": children,
        "many_threads": many_threads,
    },
    run=run,
    run_async=run_async,
)
