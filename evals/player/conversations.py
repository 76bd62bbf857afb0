"""The requests of a job's turns, and what is read from the replies.

Two ways. `ReplayConversation` sends token ids to `/v1/completions`: prompts have exactly the
planned length, the model's own tokens are in the next prompt as it generated them, so the prefix
repeats to the last token, and outputs have the planned length. (A chat template adds tokens of its
own, and text read back may tokenize otherwise than it was generated.) `LiveConversation` chats, and
the model answers as it likes.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from agentkv import parse_tool_calls
from agentkv.errors import RunError

from ..workload.plans import JobPlan

CHARS_PER_TOKEN = 3
"""Of the sample text, where the server's tokenizer is not asked. Measured with SmolLM2's: 2.85."""
ContentT = TypeVar("ContentT", list[int], str)

LIVE_PROMPT = (
    "You are a coding agent in a shell. Answer each message with exactly one bash command in a "
    "```bash block, without any explanation."
)


@dataclass(frozen=True, slots=True)
class Windows(Generic[ContentT]):
    """Stretches of a long text, drawn by seed, job and turn; the text goes round at its end."""

    content: ContentT
    seed: int

    def draw(self, job: JobPlan, turn: int, per_token: int = 1) -> ContentT:
        """What a turn of a job adds, the same every time; the first begins with its prefixes."""
        added = self.content[:0]
        for prefix in job.prefixes if turn == 0 else ():
            added += self._stretch(prefix.name, 0, prefix.num_tokens * per_token - len(added))
        length = job.turns[turn].added_tokens * per_token
        return added + self._stretch(job.job_id, turn, length - len(added))

    def _stretch(self, name: str, turn: int, length: int) -> ContentT:
        size = len(self.content)
        start = random.Random(f"{self.seed} text {name} {turn}").randrange(size)
        rounds = self.content[start:] + self.content * (1 + length // size)
        return rounds[:length]


class Conversation(Protocol):
    """One job's exchange with the model: `request`, `read` its events, `end_turn`, turn after turn.

    `path` is "completions" or "chat", the API that the requests are for.
    """

    path: ClassVar[str]

    def request(self, turn: int) -> dict[str, Any]:
        """Arguments of the OpenAI client's `create` for this turn."""

    def read(self, event: Mapping[str, Any]) -> bool:
        """Take in one event of the reply; True if it brought a token."""

    def end_turn(self, turn: int) -> str:
        """End the turn after a complete reply; returns the command to run."""

    def output_digest(self) -> str:
        """The same for the same output of the turn that ended last."""


@dataclass(slots=True)
class ReplayConversation:
    """Exact lengths, greedy; `run_id` keeps runs and jobs apart in the server's prefix cache.

    Jobs with a common prefix are not kept apart.
    """

    path: ClassVar[str] = "completions"

    job: JobPlan
    model: str
    windows: Windows[list[int]]
    run_id: str
    _token_ids: list[int] = field(default_factory=list)
    _output_token_ids: list[int] = field(default_factory=list)

    def request(self, turn: int) -> dict[str, Any]:
        plan = self.job.turns[turn]
        self._token_ids += self.windows.draw(self.job, turn)
        self._output_token_ids = []
        shared = next((prefix.name for prefix in self.job.prefixes), self.job.job_id)
        extra = {
            "min_tokens": plan.output_tokens,
            "ignore_eos": True,
            "return_token_ids": True,
            # a digest: vLLM allows few characters in it
            "cache_salt": _digest(f"{self.run_id} {shared}"),
            # as an argument the SDK would look at each token, a tenth of a second per prompt
            "prompt": list(self._token_ids),
        }
        return {
            "model": self.model,
            "prompt": "",
            "max_tokens": plan.output_tokens,
            "temperature": 0.0,
            "extra_body": extra,
        }

    def read(self, event: Mapping[str, Any]) -> bool:
        num_before = len(self._output_token_ids)
        for choice in event.get("choices", ()):
            self._output_token_ids += choice.get("token_ids") or ()
        return len(self._output_token_ids) > num_before

    def end_turn(self, turn: int) -> str:
        if not self._output_token_ids:
            raise RunError("the reply has no token ids: use a vLLM server, or --mode live")
        self._token_ids += self._output_token_ids
        return self.job.turns[turn].command

    def output_digest(self) -> str:
        return _digest(",".join(map(str, self._output_token_ids)))


@dataclass(slots=True)
class LiveConversation:
    """A chat: lengths are roughly as planned, and the model's own command runs."""

    path: ClassVar[str] = "chat"

    job: JobPlan
    model: str
    windows: Windows[str]
    max_output_tokens: int
    _messages: list[dict[str, str]] = field(
        default_factory=lambda: [{"role": "system", "content": LIVE_PROMPT}]
    )
    _reply: list[str] = field(default_factory=list)

    def request(self, turn: int) -> dict[str, Any]:
        text = self.windows.draw(self.job, turn, per_token=CHARS_PER_TOKEN)
        self._messages.append({"role": "user", "content": text})
        self._reply = []
        return {
            "model": self.model,
            "messages": list(self._messages),
            "max_tokens": self.max_output_tokens,
            "temperature": 0.0,
        }

    def read(self, event: Mapping[str, Any]) -> bool:
        has_token = False
        for choice in event.get("choices", ()):
            delta = choice.get("delta") or {}
            self._reply.append(delta.get("content") or "")
            thought = delta.get("reasoning") or delta.get("reasoning_content")
            has_token = has_token or bool(delta.get("content") or thought)
        return has_token

    def end_turn(self, turn: int) -> str:
        text = "".join(self._reply)
        self._messages.append({"role": "assistant", "content": text})
        planned = self.job.turns[turn].command
        calls = parse_tool_calls(text) if planned else []
        return next((call.command for call in calls if call.command), None) or planned

    def output_digest(self) -> str:
        return _digest("".join(self._reply))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
