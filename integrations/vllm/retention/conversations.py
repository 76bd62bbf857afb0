"""Tells apart what is sent under one job's id: its own turns, side requests, other conversations.

By prefix and size alone, for every agent. A side request (a title, tags, a summary) is shorter than
what the job has at the moment, and starts otherwise. An id is shared, as one X-Session-ID for a
whole application is, once a prompt goes on from one that the job had left behind: from then on the
job keeps one conversation, and the others are inferred as if they had no id.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from agentkv.events import IdShared
from agentkv.policies.jobs import Job, Prompt
from agentkv.watchers import EventStream

from .jobs import JobTable
from .pins import PinTable

Kind = Literal["own", "aside", "another"]

START_TOKENS = 64
"""Tokens at the start of a prompt that tell an agent's from its side requests'."""
MAX_REWRITTEN_TOKENS = 4
"""Tokens at the end of a prompt where a template opens a thought, which the next one may lack."""
MAX_LEFT = 64
"""Prompts remembered of an id that its job did not go on from."""


class Beginning(NamedTuple):
    """The first tokens of a prompt, known by the hash of their last full block."""

    block: int
    block_hash: Any
    num_prompt_tokens: int

    def is_of(self, prompt: Prompt) -> bool:
        """True if a prompt has the same."""
        hashes = prompt.block_hashes
        return self.block < len(hashes) and hashes[self.block] == self.block_hash


@dataclass(slots=True)
class Seen:
    """The prompts of one id."""

    start: Beginning | None = None
    """The first 64 tokens of the job's last own prompt."""
    whole: Beginning | None = None
    """All of it that no template rewrites; None if that fills no block."""
    left: deque[Beginning] = field(default_factory=lambda: deque(maxlen=MAX_LEFT))
    """Others as a whole: side requests, and own ones that the next one did not go on from."""
    is_shared: bool = False

    def goes_on_from_left(self, prompt: Prompt) -> bool:
        num_tokens = len(prompt.token_ids)
        return any(each.num_prompt_tokens < num_tokens and each.is_of(prompt) for each in self.left)


class Conversations:
    """What the ids of an engine's jobs stand for. O(1) for a turn that goes on from the last."""

    def __init__(
        self, block_tokens: int, jobs: JobTable, pins: PinTable[Any], stream: EventStream
    ) -> None:
        self._block_tokens, self._jobs, self._pins = block_tokens, jobs, pins
        self._emit = stream.emit
        self._by_job: dict[str, Seen] = {}

    def kind(self, job_id: str | None, prompt: Prompt | None) -> Kind:
        """What a request is that arrives under a job's id."""
        job, seen = self._jobs.get(job_id or ""), self._by_job.get(job_id or "")
        if prompt is None or job is None or seen is None or seen.whole is None:
            return "own"
        if seen.whole.is_of(prompt):
            return "own"
        if not seen.is_shared and seen.goes_on_from_left(prompt):
            seen.is_shared = True
            self._emit(IdShared, job.job_id)
        if seen.is_shared:
            return "another"
        is_alike = seen.start is None or seen.start.is_of(prompt)
        if is_alike or job.common_tokens(prompt, self._block_tokens):
            return "own"
        is_active = bool(job.live) or self._pins.get(job.job_id) is not None
        lengths = [turn.num_prompt_tokens for turn in job.live.values() if not turn.is_side_request]
        is_shorter = len(prompt.token_ids) < max([job.context_tokens, *lengths])
        return "aside" if is_active and is_shorter else "own"

    def arrived(self, job: Job, prompt: Prompt, *, is_aside: bool) -> None:
        """Note the prompt of a turn of the job, or of a side request."""
        seen = self._by_job.get(job.job_id)
        if seen is None:
            seen = self._by_job[job.job_id] = Seen()
        whole = self._beginning(prompt, len(prompt.token_ids) - MAX_REWRITTEN_TOKENS)
        last = seen.whole
        if is_aside:
            if whole is not None:
                seen.left.append(whole)
            return
        seen.whole = whole
        if last is None or not last.is_of(prompt):  # else its start, too, is as it was
            seen.start = self._beginning(prompt, max(START_TOKENS, self._block_tokens))
            if last is not None:
                seen.left.append(last)

    def forget(self, job_id: str) -> None:
        """The job is over."""
        self._by_job.pop(job_id, None)

    def _beginning(self, prompt: Prompt, num_tokens: int) -> Beginning | None:
        hashes = prompt.block_hashes
        index = min(num_tokens // self._block_tokens, len(hashes)) - 1
        return Beginning(index, hashes[index], len(prompt.token_ids)) if index >= 0 else None
