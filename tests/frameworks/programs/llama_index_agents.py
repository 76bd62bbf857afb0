"""Agents and agent workflows of LlamaIndex."""

from __future__ import annotations

from typing import Any

from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.llms.openai_like import OpenAILike
from program import BASE_URL, MODEL, lookup, main, shell


def agent(instructions: str = "You help.", *, stream: bool = False, **options: Any) -> Any:
    model = OpenAILike(
        model=MODEL,
        api_base=BASE_URL,
        api_key="key",
        is_chat_model=True,
        is_function_calling_model=True,
    )
    options = {"tools": [shell, lookup], **options}
    return FunctionAgent(llm=model, system_prompt=instructions, streaming=stream, **options)


async def run(task: str = "PLAN-two", **options: Any) -> str:
    return str(await agent(**options).run(task))


async def stream() -> str:
    handler = agent(stream=True).run("PLAN-two")
    async for _ in handler.stream_events():
        pass
    return str(await handler)


async def children() -> str:
    helper = agent("PLAN-helper")

    async def ask_helper(task: str) -> str:
        """Ask the helper."""
        return str(await helper.run(task))

    return await run("PLAN-delegate", tools=[ask_helper])


async def handoff() -> str:
    lead = agent(name="lead", description="Leads.", can_handoff_to=["helper"])
    helper = agent("PLAN-helper", name="helper", description="Helps.")
    return str(await AgentWorkflow(agents=[lead, helper], root_agent="lead").run("PLAN-handoff"))


main({"stream": stream, "children": children, "handoff": handoff}, run_async=run)
