"""The turns of one agent loop: how long each reply and each command took, and its tokens.

Also what a job is told between two replies: the command that starts and ends, the last step, and
the release of a job that is about to submit. Knows nothing of mini-swe-agent's classes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from agentkv.client.job import Job, ToolRun
from agentkv.client.replies import Usage

SUBMIT_MARKER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""A command whose output begins with this line ends the job.
Source: minisweagent/environments/local.py, LocalEnvironment._check_finished (2.4.6)."""


@dataclass(slots=True)
class Turn:
    """One reply and what it had run; None is what the server did not tell, or nothing to run."""

    turn: int
    llm_s: float
    tool_s: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    command: str | None = None


class TurnLog:
    """Watches a loop from the inside of its model; for one loop, in one thread, at a time."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turns: list[Turn] = []
        self._reply: Usage | None = None
        self._tool: ToolRun | None = None
        self._num_calls_left: int | None = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The turns so far, ready for JSON."""
        return [asdict(turn) for turn in self._turns]

    @property
    def num_turns(self) -> int:
        """Replies so far."""
        return len(self._turns)

    def limit_calls(self, step_limit: int, num_calls: int) -> None:
        """The loop ends after `step_limit` calls, of which it has made `num_calls`; 0 is no limit.

        Calls made after this are counted here.
        """
        self._num_calls_left = step_limit - num_calls if step_limit > 0 else None

    @contextmanager
    def query(self, job: Job[Any]) -> Iterator[None]:
        """Times a call of the model with its retries; a reply in the wrong format is a turn too."""
        self.end_tool()
        if self._num_calls_left is not None:
            if self._num_calls_left == 1:
                job.last_step()
            self._num_calls_left -= 1
        self._reply = None
        started_at_s = self._clock()
        try:
            yield
        finally:
            if self._reply is not None:
                self._turns.append(self._turn(self._reply, self._clock() - started_at_s))

    def note_reply(self, usage: Usage | None) -> None:
        """A reply came in, with these tokens."""
        self._reply = usage or Usage()

    def begin_tool(self, job: Job[Any], commands: Sequence[str]) -> None:
        """The loop is about to run the commands of the last reply."""
        if not commands or not self._turns:
            return
        command = "\n".join(commands)
        self._turns[-1].command = command
        self._tool = job.tool(command).__enter__()
        if SUBMIT_MARKER in command:
            # Only a hint: if the submission fails, the next turn is one like any other.
            job.release()

    def end_tool(self) -> None:
        """The commands are done, or the loop gave up on them; without any, nothing happens."""
        tool, self._tool = self._tool, None
        if tool is not None:
            tool.__exit__(None, None, None)
            self._turns[-1].tool_s = tool.duration_s or 0.0

    def _turn(self, usage: Usage, llm_s: float) -> Turn:
        return Turn(
            turn=len(self._turns) + 1,
            llm_s=llm_s,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
        )
