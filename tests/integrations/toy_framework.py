"""A framework of its own making: agents that run in every way that real ones do."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

Turn = Callable[[], Any]


class Base:
    def inherited(self, turn: Turn) -> Any:
        return turn()


class Handle:
    """What a framework returns for a run that goes on."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task


class Agent(Base):
    """`turn` is one call of the model; `tools` call tools of the agent."""

    def run(self, turn: Turn, *tools: str) -> list[Any]:
        replies = [turn()]
        for name in tools:
            self.call_tool(name, turn)
            replies.append(turn())
        return replies

    def run_again(self, turn: Turn) -> list[Any]:
        return self.run(turn)

    async def run_async(self, turn: Turn) -> list[Any]:
        replies = [await turn()]
        await asyncio.sleep(0)
        return [*replies, await turn()]

    def returning_a_coroutine(self, turn: Turn) -> Any:
        return self.run_async(turn)

    def stream(self, turn: Turn) -> Iterator[Any]:
        sent = yield turn()
        yield sent
        yield turn()
        return

    async def stream_async(self, turn: Turn) -> AsyncIterator[Any]:
        sent = yield await turn()
        yield sent
        yield await turn()

    @asynccontextmanager
    async def opened(self, turn: Turn) -> AsyncIterator[Any]:
        yield await turn()

    def started(self, turn: Turn) -> asyncio.Task[Any]:
        return asyncio.ensure_future(self.run_async(turn))

    def handle(self, turn: Turn) -> Handle:
        return Handle(self.started(turn))

    def call_tool(self, name: str, arguments: Any = None) -> Any:
        if callable(arguments) and name == "sub-agent":
            return Agent().run(arguments)
        if name == "nested":
            return self.call_tool("inner")
        if name == "broken":
            raise KeyError(name)
        return name

    @staticmethod
    def static(turn: Turn) -> Any:
        return turn()

    @classmethod
    def of_the_class(cls, turn: Turn) -> Any:
        return cls, turn()


def take_turn(agent: object, turn: Turn) -> Any:
    """A turn of one of several agents in a run."""
    return turn()


class Team:
    def run(self, agents: list[object], turn: Turn) -> None:
        for agent in agents:
            take_turn(agent, turn)
            Agent().call_tool("shell")
