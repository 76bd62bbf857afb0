"""Tasks of Inspect, whose samples are solved by its ReAct agent."""

from __future__ import annotations

import tempfile
from typing import Any

from inspect_ai import Task, eval
from inspect_ai.agent import as_tool, handoff, react
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from inspect_ai.tool import tool
from program import BASE_URL, MODEL, main
from program import lookup as look_up
from program import shell as run_shell

LOGS = tempfile.mkdtemp()


@tool
def shell() -> Any:
    async def execute(command: str) -> str:
        """Run a command.

        Args:
            command: the command.
        """
        return run_shell(command)

    return execute


@tool
def lookup() -> Any:
    async def execute(query: str) -> str:
        """Look something up.

        Args:
            query: what to look up.
        """
        return look_up(query)

    return execute


TOOLS = [shell(), lookup()]


def run(task: str = "PLAN-two", *, samples: int = 1, tools: Any = TOOLS) -> Any:
    model = get_model(f"openai/{MODEL}", base_url=BASE_URL, api_key="key", responses_api=False)
    dataset = [Sample(input=task, id=number) for number in range(samples)]
    solver = react(tools=tools, prompt="You help.", submit=False)
    task_of_it = Task(dataset=dataset, solver=solver)
    (log,) = eval(task_of_it, model=model, display="none", log_dir=LOGS, max_retries=1)
    if log.status != "success":
        return f"failed by {log.error.message if log.error else log.status}"
    return [sample.output.completion for sample in log.samples]


def helper() -> Any:
    return react(
        name="helper",
        description="Helps.",
        prompt="PLAN-helper",
        tools=[shell(), lookup()],
        submit=False,
    )


main(
    {
        "sync": run,
        "parallel": lambda: run("PLAN-parallel"),
        "children": lambda: run("PLAN-delegate", tools=[as_tool(helper())]),
        "handoff": lambda: run("PLAN-transfer", tools=[handoff(helper())]),
        "many": lambda: run(samples=3),
        "fails": lambda: run("PLAN-fails"),
    }
)
