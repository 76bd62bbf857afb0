"""The jobs with KV on the GPU, and the most memory they are expected to hold together.

Knows blocks only as numbers, and nothing of vLLM.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import NamedTuple

from .jobs import Job

MAX_TURNS = 128
"""A forecast looks so many turns ahead; what a job does after them does not count."""


class Resident(NamedTuple):
    """A job's KV in blocks, and how the job is expected to go on."""

    num_blocks: float
    turns_left: float
    blocks_per_turn: float
    is_idle: bool = False
    """No turn of it runs: its KV is held while its tool does."""


class _Sums:
    """Blocks, and blocks per turn, of jobs by their turns left."""

    def __init__(self) -> None:
        self.num_blocks = [0.0] * (MAX_TURNS + 1)
        self.blocks_per_turn = [0.0] * (MAX_TURNS + 1)

    def add(self, resident: Resident, sign: int) -> None:
        turns = _whole_turns(resident)
        self.num_blocks[turns] += sign * resident.num_blocks
        self.blocks_per_turn[turns] += sign * resident.blocks_per_turn


class Residents:
    """Sums over the jobs by turns left, rounded: each change is O(1), the peak O(MAX_TURNS)."""

    def __init__(self) -> None:
        self._by_job: dict[str, Resident] = {}
        self._idle = _Sums()
        self._active = _Sums()

    def put(self, job_id: str, resident: Resident) -> None:
        """A job is there, or is there in another way than before."""
        self.drop(job_id)
        self._by_job[job_id] = resident
        self._sums_of(resident).add(resident, 1)

    def drop(self, job_id: str) -> None:
        """A job holds no KV any more."""
        resident = self._by_job.pop(job_id, None)
        if resident is not None:
            self._sums_of(resident).add(resident, -1)

    def _sums_of(self, resident: Resident) -> _Sums:
        return self._idle if resident.is_idle else self._active

    def peak_with(self, newcomer: Resident, idle_weight: float = 1.0) -> float:
        """The most blocks ever held together with one job more, if all go on turn by turn; idle
        ones count by `idle_weight`.

        That is reached just before a job ends: when those that end after it have grown by as many
        turns as it had left.
        """
        active, idle = self._active, self._idle
        own_turns = _whole_turns(newcomer)
        most = blocks = growth = 0.0
        for turns in range(MAX_TURNS, -1, -1):
            blocks += active.num_blocks[turns] + idle_weight * idle.num_blocks[turns]
            growth += active.blocks_per_turn[turns] + idle_weight * idle.blocks_per_turn[turns]
            if turns == own_turns:
                blocks += newcomer.num_blocks
                growth += newcomer.blocks_per_turn
            most = max(most, blocks + growth * turns)
        return most


def _whole_turns(resident: Resident) -> int:
    return max(0, min(round(resident.turns_left), MAX_TURNS))


# MERGED: How jobs go on: turns still to come, and what each adds to the context.
# MERGED: Learned from the jobs and turns of this engine; knows nothing of blocks, pins or
# MERGED: vLLM.

WINDOW = 512
"""Jobs, and turns, that are remembered."""
PRIOR_TURNS = 11
"""Turns of a job while none has ended. Source: 10.9 on SWE-bench, Continuum (arXiv 2511.02230)."""
PRIOR_TOKENS = 500
PRIOR_SHARE = 0.25
"""What a turn adds while none has ended: this share of the first prompt, at most so many tokens.
Assumed; for scale: of 393 mini-swe-agent runs on SWE-bench Verified half reach 14,000 prompt
tokens, and half take 36 turns or more."""
PRIOR_WEIGHT_TURNS = 16
"""The prior counts as much as so many turns seen."""
OWN_WEIGHT_TURNS = 4
"""A job's own growth counts as much as the mean of all after so many of its turns."""


class JobGrowth:
    """Expectations about the jobs of one engine; each observation is O(WINDOW), each question O(1)
    but for a search in the window."""

    def __init__(self) -> None:
        self._in_order: deque[int] = deque([PRIOR_TURNS])
        self._lengths: list[int] = [PRIOR_TURNS]
        self._sum_turns = PRIOR_TURNS
        self._added: deque[int] = deque(maxlen=WINDOW)
        self._added_tokens = 0

    def job_ended(self, num_turns: int) -> None:
        """A job is over after so many turns; more than a forecast looks ahead do not count."""
        num_turns = min(num_turns, MAX_TURNS)
        if len(self._in_order) == WINDOW:
            oldest = self._in_order.popleft()
            del self._lengths[bisect_left(self._lengths, oldest)]
            self._sum_turns -= oldest
        self._in_order.append(num_turns)
        insort(self._lengths, num_turns)
        self._sum_turns += num_turns

    def turn_ended(self, added_tokens: int) -> None:
        """A turn left the job's context so many tokens longer than the one before."""
        if len(self._added) == WINDOW:
            self._added_tokens -= self._added[0]
        self._added.append(added_tokens)
        self._added_tokens += added_tokens

    @property
    def mean_turns(self) -> float:
        """Turns of a job, from its first to its end."""
        return self._sum_turns / len(self._lengths)

    def turns_left(self, job: Job) -> float:
        """Turns still to come after those that have arrived: as other jobs had them; fewer if the
        client says so, but never more: what one job claims is not to keep others out."""
        turns_left = self._turns_left_as_others(job)
        if job.expected_turns is None or job.expected_turns < job.num_turns:
            return turns_left
        return min(turns_left, float(job.expected_turns - job.num_turns))

    def _turns_left_as_others(self, job: Job) -> float:
        longer = bisect_right(self._lengths, job.num_turns)
        if longer == len(self._lengths):
            return float(max(1, job.num_turns - self._lengths[-1]))
        rest = self._lengths[longer:]
        return sum(rest) / len(rest) - job.num_turns

    def tokens_per_turn(self, job: Job) -> float:
        """Tokens that each turn of the job is expected to add."""
        prior_tokens = min(PRIOR_TOKENS, PRIOR_SHARE * job.first_prompt_tokens)
        mean_tokens = (self._added_tokens + PRIOR_WEIGHT_TURNS * prior_tokens) / (
            len(self._added) + PRIOR_WEIGHT_TURNS
        )
        own_tokens = max(0, job.context_tokens - job.first_prompt_tokens)
        own_turns = job.num_turns if job.context_tokens else 0
        weighed = own_tokens + OWN_WEIGHT_TURNS * mean_tokens
        return weighed / (own_turns + OWN_WEIGHT_TURNS)
