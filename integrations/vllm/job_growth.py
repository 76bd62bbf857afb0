"""How jobs go on: turns still to come, and what each adds to the context.

Learned from the jobs and turns of this engine; knows nothing of blocks, pins or vLLM.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque

from .jobs import Job
from .residents import MAX_TURNS

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
