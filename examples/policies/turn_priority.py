"""The turn of the job that has come furthest is served first, raised by how long it waits.

Source: llm-d/llm-d-router PR 2116, strategy_turnpriority.go @a5448a6. Score: the turn's number
plus `wait_weight` per second of waiting; the highest goes first. A job that comes back after more
than `inactivity_s` without a turn in flight counts from 1 again.

Left open: the weight, 0.05 when it was merged and 0.5 in the issue and the code that was read; the
default here is 0.05. Scores of two waiting turns grow alike, so their order never changes, and the
rank needs no clock.
Not in it: the flow controller sheds requests after 60 s, which bounds how far a newcomer can fall
behind. Here nothing is shed, so a first turn may wait for as long as deeper ones keep coming.
"""

from __future__ import annotations

from pydantic import Field

from agentkv.policies import UNPINNED, Job, Policy, Rank, Settings, Turn


class TurnPrioritySettings(Settings):
    wait_weight: float = Field(0.05, ge=0)
    """Turns that a second of waiting is worth."""
    inactivity_s: float = Field(120.0, gt=0)
    """Seconds without a turn after which a job counts from 1 again."""


class TurnPriority(Policy):
    """Deepest job first; KV is left to the cache."""

    settings_class = TurnPrioritySettings
    settings: TurnPrioritySettings

    def __init__(self, settings: Settings, pool_tokens: int) -> None:
        super().__init__(settings, pool_tokens)
        self._numbers: dict[str, int] = {}
        """The number of each turn in the engine."""
        self._forgotten: dict[str, int] = {}
        """Turns of a job that no longer count, since it was away for too long."""

    def number_of(self, turn: Turn) -> int:
        """The turn's number within its job, from 1; decided when it is first asked about."""
        number = self._numbers.get(turn.request_id)
        if number is None:
            job = turn.job
            if self.was_away(turn):
                self._forgotten[job.job_id] = job.num_turns - 1
            number = max(1, job.num_turns - self._forgotten.get(job.job_id, 0))
            self._numbers[turn.request_id] = number
        return number

    def was_away(self, turn: Turn) -> bool:
        job = turn.job
        if job.finished_s is None or len(job.live) > 1:
            return False
        return turn.arrived_s - job.finished_s > self.settings.inactivity_s

    def rank(self, turn: Turn, *, is_preempted: bool, is_pinned: bool) -> Rank:
        score = self.number_of(turn) - self.settings.wait_weight * turn.arrived_s
        return (UNPINNED, -score, turn.order)

    def turn_finished(self, turn: Turn, served_s: float) -> None:
        self._numbers.pop(turn.request_id, None)

    def job_ended(self, job: Job) -> None:
        self._forgotten.pop(job.job_id, None)
