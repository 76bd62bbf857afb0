"""How jobs go on: whether there are turns to come, and what each adds to the context.

Learned from the jobs and turns of this engine; knows nothing of blocks, pins or vLLM.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .jobs import Job

WINDOW = 512
"""Jobs, and turns, that are remembered."""
MAX_TURNS = 128
"""A forecast looks so many turns ahead, and takes a job that has had more for one that has had so
many."""
PRIOR_TOKENS = 500
PRIOR_SHARE = 0.25
"""What a turn adds while none has ended: this share of the first prompt, at most so many tokens.
Assumed; for scale: of 393 mini-swe-agent runs on SWE-bench Verified half reach 14,000 prompt
tokens, and half take 36 turns or more."""
PRIOR_WEIGHT_TURNS = 16
"""The prior counts as much as so many turns seen."""
OWN_WEIGHT_TURNS = 4
"""A job's own growth counts as much as the mean of all after so many of its turns."""
_ONE_MORE = np.arange(MAX_TURNS + 1) <= 1


class JobLengths:
    """How likely a job is to go on after so many turns, by the jobs that ended last."""

    def __init__(self) -> None:
        self._ended: deque[int] = deque()
        self._num_ended = np.zeros(2 * MAX_TURNS + 1)
        self._odds: Any = None

    def job_ended(self, num_turns: int) -> None:
        """A job is over after so many turns."""
        if len(self._ended) == WINDOW:
            self._num_ended[self._ended.popleft()] -= 1
        self._ended.append(min(num_turns, 2 * MAX_TURNS))
        self._num_ended[self._ended[-1]] += 1
        self._odds = None

    @property
    def odds(self) -> Any:
        """Probabilities [turn, ahead], both up to MAX_TURNS: of the jobs that had a turn of this
        number the share that had one so many turns later. A job that has outlived all, as any has
        while none has ended, is taken to have one more turn.
        """
        if self._odds is None:
            lasting = self._num_ended[::-1].cumsum()[::-1]
            there = lasting[: MAX_TURNS + 1, None]
            later = sliding_window_view(lasting, MAX_TURNS + 1)
            self._odds = np.where(there > 0, later / np.maximum(there, 1), _ONE_MORE)
        return self._odds


class JobGrowth:
    """What the turns of one engine's jobs add to their contexts; everything is O(1)."""

    def __init__(self) -> None:
        self._added: deque[int] = deque(maxlen=WINDOW)
        self._added_tokens = 0

    def turn_ended(self, added_tokens: int) -> None:
        """A turn left the job's context so many tokens longer than the one before."""
        if len(self._added) == WINDOW:
            self._added_tokens -= self._added[0]
        self._added.append(added_tokens)
        self._added_tokens += added_tokens

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
