"""Agents of Google's ADK, over litellm."""

from __future__ import annotations

import asyncio
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.genai import types
from program import BASE_URL, MODEL, lookup, main, shell


def agent(name: str = "lead", instructions: str = "You help.", **options: Any) -> LlmAgent:
    model = LiteLlm(model=f"hosted_vllm/{MODEL}", api_base=BASE_URL, api_key="key")
    options = {"tools": [shell, lookup], **options}
    return LlmAgent(name=name, model=model, instruction=instructions, **options)


async def run(task: str = "PLAN-two", *, stream: bool = False, **options: Any) -> str:
    runner = InMemoryRunner(agent(**options), app_name="app")
    session = await runner.session_service.create_session(app_name="app", user_id="me")
    message = types.Content(role="user", parts=[types.Part(text=task)])
    config = RunConfig(streaming_mode=StreamingMode.SSE if stream else StreamingMode.NONE)
    texts = []
    async for event in runner.run_async(
        user_id="me", session_id=session.id, new_message=message, run_config=config
    ):
        if event.content and event.content.parts:
            texts += [part.text for part in event.content.parts if part.text]
    return texts[-1]


def run_sync() -> str:
    runner = InMemoryRunner(agent(), app_name="app")
    session = asyncio.get_event_loop().run_until_complete(
        runner.session_service.create_session(app_name="app", user_id="me")
    )
    message = types.Content(role="user", parts=[types.Part(text="PLAN-two")])
    *_, last = runner.run(user_id="me", session_id=session.id, new_message=message)
    return last.content.parts[-1].text


def helper(**options: Any) -> LlmAgent:
    return agent("helper", "PLAN-helper", description="Helps.", **options)


main(
    {
        "stream": lambda: run(stream=True),
        "parallel": lambda: run("PLAN-parallel"),
        "children": lambda: run("PLAN-delegate", tools=[AgentTool(helper())]),
        "handoff": lambda: run("PLAN-transfer", sub_agents=[helper()]),
    },
    run=run_sync,
    run_async=run,
)
