"""How the jobs of this engine go on: turns to come and tokens that each adds, learned from others.

AdmissionController feeds it and asks it. Knows nothing of pins or vLLM.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque

from agentkv.policies.forecast import MAX_TURNS
from agentkv.policies.jobs import Job

WINDOW = 512
"""Jobs, and turns, that are remembered."""
PRIOR_TURNS = 11
"""Turns of a job while none has ended. Source: 10.9 on SWE-bench, Continuum (arXiv 2511.02230)."""
PRIOR_TOKENS = 500
PRIOR_SHARE = 0.25
"""Tokens that a turn adds while none has ended: this share of the first prompt, up to PRIOR_TOKENS.
Assumed; for scale: of 393 mini-swe-agent runs on SWE-bench Verified half reach 14,000 prompt
tokens, and half take 36 turns or more."""
PRIOR_WEIGHT_TURNS = 16
"""Weight of the prior, in turns seen."""
OWN_WEIGHT_TURNS = 4
"""Turns of its own after which a job's growth weighs as much as the mean of all jobs."""


class JobGrowth:
    """Expects jobs to go on as earlier ones did; an observation is O(WINDOW)."""

    def __init__(self) -> None:
        self._in_order: deque[int] = deque([PRIOR_TURNS])
        self._lengths: list[int] = [PRIOR_TURNS]
        self._sum_turns = PRIOR_TURNS
        self._added: deque[int] = deque(maxlen=WINDOW)
        self._added_tokens = 0

    def job_ended(self, num_turns: int) -> None:
        """Record the length of a finished job, up to MAX_TURNS."""
        num_turns = min(num_turns, MAX_TURNS)
        if len(self._in_order) == WINDOW:
            oldest = self._in_order.popleft()
            del self._lengths[bisect_left(self._lengths, oldest)]
            self._sum_turns -= oldest
        self._in_order.append(num_turns)
        insort(self._lengths, num_turns)
        self._sum_turns += num_turns

    def turn_ended(self, added_tokens: int) -> None:
        """Record by how many tokens a turn lengthened its job's context."""
        if len(self._added) == WINDOW:
            self._added_tokens -= self._added[0]
        self._added.append(added_tokens)
        self._added_tokens += added_tokens

    @property
    def mean_turns(self) -> float:
        """Mean number of turns of a whole job."""
        return self._sum_turns / len(self._lengths)

    def turns_left(self, job: Job) -> float:
        """Expected turns of the job after those that have arrived.

        The client's `expected_turns` can lower the number but not raise it: no job's claim may
        keep others out.
        """
        longer = bisect_right(self._lengths, job.num_turns)
        if longer == len(self._lengths):
            turns_left = float(max(1, job.num_turns - self._lengths[-1]))
        else:
            rest = self._lengths[longer:]
            turns_left = sum(rest) / len(rest) - job.num_turns
        if job.expected_turns is None or job.expected_turns < job.num_turns:
            return turns_left
        return min(turns_left, float(job.expected_turns - job.num_turns))

    def tokens_per_turn(self, job: Job) -> float:
        """Expected number of tokens that each turn adds to the job's context."""
        prior_tokens = min(PRIOR_TOKENS, PRIOR_SHARE * job.first_prompt_tokens)
        mean_tokens = (self._added_tokens + PRIOR_WEIGHT_TURNS * prior_tokens) / (
            len(self._added) + PRIOR_WEIGHT_TURNS
        )
        own_tokens = max(0, job.context_tokens - job.first_prompt_tokens)
        own_turns = job.num_turns if job.context_tokens else 0
        weighed = own_tokens + OWN_WEIGHT_TURNS * mean_tokens
        return weighed / (own_turns + OWN_WEIGHT_TURNS)
