"""Agents of Haystack."""

from __future__ import annotations

from typing import Any

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from program import BASE_URL, MODEL, lookup, main, shell

TOOLS = [create_tool_from_function(shell), create_tool_from_function(lookup)]


def agent(instructions: str = "You help.", **options: Any) -> Agent:
    generator = OpenAIChatGenerator(model=MODEL, api_base_url=BASE_URL)
    options = {"tools": TOOLS, **options}
    return Agent(chat_generator=generator, system_prompt=instructions, **options)


def answer(result: Any) -> str:
    return result["messages"][-1].text


def run(task: str = "PLAN-two", **options: Any) -> str:
    return answer(agent(**options).run([ChatMessage.from_user(task)]))


async def run_async(task: str = "PLAN-two") -> str:
    return answer(await agent().run_async([ChatMessage.from_user(task)]))


def stream() -> str:
    return run(streaming_callback=lambda chunk: None)


def children() -> str:
    def ask_helper(task: str) -> str:
        """Ask the helper."""
        return run(task, instructions="PLAN-helper")

    return run("PLAN-delegate", tools=[create_tool_from_function(ask_helper)])


main({"stream": stream, "children": children}, run=run, run_async=run_async)
