"""ReAct of DSPy, over litellm."""

from __future__ import annotations

from typing import Any

import dspy
from program import BASE_URL, MODEL, lookup, main, shell

dspy.configure(
    lm=dspy.LM(f"hosted_vllm/{MODEL}", api_base=BASE_URL, api_key="key", cache=False),
    adapter=dspy.ChatAdapter(),
)


def agent(signature: str = "task -> answer", tools: Any = (shell, lookup)) -> Any:
    return dspy.ReAct(signature, tools=list(tools))


def run(task: str = "PLAN-two", **options: Any) -> str:
    return agent(**options)(task=task).answer


async def run_async(task: str = "PLAN-two") -> str:
    return (await agent().acall(task=task)).answer


def children() -> str:
    def ask_helper(task: str) -> str:
        """Ask the helper."""
        return run("PLAN-helper")

    return run("PLAN-delegate", tools=[ask_helper])


main({"children": children}, run=run, run_async=run_async)
