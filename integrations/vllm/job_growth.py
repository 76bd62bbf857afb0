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
PRIOR_TURNS = 11
"""A job before all others had so many turns. Source: 10.9 on SWE-bench, Continuum (arXiv
2511.02230)."""
PRIOR_TOKENS = 500
PRIOR_SHARE = 0.25
"""What a turn adds while none has ended: this share of the first prompt, at most so many tokens.
Assumed; for scale: of 393 mini-swe-agent runs on SWE-bench Verified half reach 14,000 prompt
tokens, and half take 36 turns or more."""
PRIOR_WEIGHT_TURNS = 16
"""The prior counts as much as so many turns seen."""
OWN_WEIGHT_TURNS = 4
"""A job's own growth counts as much as the mean of all after so many of its turns."""


class JobLengths:
    """How likely a job is to go on after so many turns, by the jobs that were here last.

    Of the jobs that had a turn of some number, those that are not over yet count too, or the short
    ones, which end first, would pass for all (Kaplan and Meier, 1958).
    """

    def __init__(self) -> None:
        self._ended: deque[int] = deque()
        self._had_turn = np.zeros(2 * MAX_TURNS + 1)
        self._were_over = np.zeros(2 * MAX_TURNS + 1)
        for turn in range(1, PRIOR_TURNS + 1):
            self.turn_arrived(turn)
        self.job_ended(PRIOR_TURNS)

    def turn_arrived(self, turn: int) -> None:
        """A job has a turn of this number, counted from 1."""
        if turn <= 2 * MAX_TURNS:
            self._had_turn[turn] += 1
            self._odds: Any = None

    def job_ended(self, num_turns: int) -> None:
        """A job is over after so many turns, each of which has arrived."""
        if len(self._ended) == WINDOW:
            self._forget(self._ended.popleft())
        self._ended.append(min(num_turns, 2 * MAX_TURNS))
        self._were_over[self._ended[-1]] += 1
        self._odds = None

    def _forget(self, num_turns: int) -> None:
        self._were_over[num_turns] -= 1
        self._had_turn[1 : num_turns + 1] -= 1

    @property
    def odds(self) -> Any:
        """Probabilities [turn, ahead], both up to MAX_TURNS, that a job in a turn of this number
        has one so many turns later. One that is further than any other is taken to have one more.
        """
        if self._odds is None:
            going_on = 1 - self._were_over / np.maximum(self._had_turn, 1)
            going_on[self._had_turn == 0] = 0
            later = sliding_window_view(going_on, MAX_TURNS)[: MAX_TURNS + 1].cumprod(axis=1)
            self._odds = np.hstack([np.ones((MAX_TURNS + 1, 1)), later])
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
