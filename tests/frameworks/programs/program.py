"""What the programs share: two tools, and a loop that runs cases by their names.

A program is what a user of the framework would write, and knows nothing of agentkv.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

BASE_URL = os.environ.get("OPENAI_BASE_URL", "")
MODEL = "scripted"
tool_started = threading.Event()


def shell(command: str) -> str:
    """Run a command.

    Args:
        command: the command.
    """
    tool_started.set()
    time.sleep(0.2)
    return "RESULT"


def lookup(query: str) -> str:
    """Look something up.

    Args:
        query: what to look up.
    """
    time.sleep(0.1)
    return "RESULT"


async def shell_async(command: str) -> str:
    tool_started.set()
    await asyncio.sleep(0.2)
    return "RESULT"


async def cancel_during_a_tool(run: Coroutine[Any, Any, Any]) -> str:
    """Cancel a run while its first tool runs."""
    task = asyncio.create_task(run)
    await asyncio.to_thread(tool_started.wait)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return "cancelled"
    return "not cancelled"


def main(
    cases: Mapping[str, Callable[[], Any]],
    *,
    run: Callable[..., Any] | None = None,
    run_async: Callable[..., Any] | None = None,
) -> None:
    """Run the cases named on the command line, or else line by line on stdin; print the answers.

    run, run_async: an agent's run of a task, of which the cases are made that all programs have.
    """
    if "--instrument" in sys.argv:
        import agentkv

        agentkv.instrument()

    async def many() -> list[Any]:
        return await asyncio.gather(*(run_async() for _ in range(3)))

    cases = {
        **{"sync": run, "async": run_async, "many": many},
        "parallel": lambda: (run or run_async)("PLAN-parallel"),
        "fails": lambda: run_async("PLAN-fails"),
        "cancelled": lambda: cancel_during_a_tool(run_async()),
        **cases,
    }
    # one for all: some frameworks keep their connections to the server, which belong to a loop
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    for name in [one for one in sys.argv[1:] if one in cases] or map(str.strip, sys.stdin):
        tool_started.clear()
        try:
            answer = cases[name]()
            if inspect.isawaitable(answer):
                answer = loop.run_until_complete(answer)
        except Exception as error:
            traceback.print_exc()
            answer = f"failed by {type(error).__name__}"
        print(f"\nANSWER {answer}", flush=True)
