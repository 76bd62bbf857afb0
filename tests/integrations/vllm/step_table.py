"""Scheduling rules as tables: each row is an event and what must be pinned and free after it."""

from typing import Any

from tests.integrations.vllm.harness import Engine
from tests.stepped_engine import prompt_of

Row = tuple[float, tuple[Any, ...], dict[str, int], int]
"""(seconds that pass before, event, pinned blocks per job after, free blocks after)."""


class Jobs:
    """Plays events on an engine; each job's prompt is its whole history plus new tokens."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._histories: dict[str, list[int]] = {}

    def prompt(self, job: str, new_tokens: int) -> list[int]:
        history = self._histories.get(job, [])
        salt = sum(map(ord, job)) + len(history)
        return history + prompt_of(new_tokens, salt=salt)

    def says(self, job: str, command: str | None, **tags: Any) -> None:
        """A turn of 100 new tokens whose reply runs `command` in a fence; None: runs nothing."""
        reply = "Let me see." if command is None else f"So:\n```bash\n{command}\n```"
        self.turn(job, 100, reply=reply, **tags)

    def turn(self, job: str, new_tokens: int, **tags: Any) -> None:
        """A whole turn of `job`: 4 output tokens, of which the last has no KV."""
        self._histories[job] = self.engine.turn(self.prompt(job, new_tokens), job_id=job, **tags)

    def untagged(self, new_tokens: int) -> None:
        self.engine.turn(prompt_of(new_tokens, salt=99))

    def wait(self) -> None:
        self.engine.wait(0.0)

    def release(self, job: str) -> None:
        assert self.engine.retention.release(job) is not None

    def tool(self, job: str, state: Any, command: str, duration_s: float | None = None) -> None:
        self.engine.tool(job, state, command, duration_s=duration_s)

    def reset(self) -> None:
        assert self.engine.scheduler.reset_prefix_cache()


def check(engine: Engine, rows: list[Row]) -> None:
    """Play the rows; the message of a failure names the row."""
    jobs = Jobs(engine)
    for number, (wait_s, (name, *arguments), pinned, free) in enumerate(rows):
        engine.wait(wait_s)
        tags = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
        getattr(jobs, name)(*arguments, **tags)
        row = f"row {number}: {name} {arguments} {tags}"
        assert engine.pinned == pinned, f"{row}: pinned {engine.pinned}, expected {pinned}"
        assert engine.num_free == free, f"{row}: {engine.num_free} free, expected {free}"
