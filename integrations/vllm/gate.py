"""Lets new jobs in, as the policy says: what KV each job has, and what holding it is worth.

Knows blocks only as numbers, and nothing of vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from .demand import Room
from .footprint import Footprint
from .hold_balance import HoldBalance
from .job_growth import JobGrowth
from .jobs import Job, Turn
from .pin_table import PinTable
from .policy import Policy
from .residents import Resident, Residents


class Gate:
    """The pool as new jobs find it; a change is O(turns of the job), a question O(1)."""

    def __init__(
        self,
        policy: Policy,
        growth: JobGrowth,
        footprint: Footprint,
        pins: PinTable[Any],
        *,
        num_blocks: int,
        clock: Callable[[], float],
    ) -> None:
        self._policy = policy
        self._growth = growth
        self._footprint = footprint
        self._pins = pins
        self._num_blocks = num_blocks
        self._clock = clock
        self._residents = Residents()
        self._balance = HoldBalance()

    @property
    def idle_weight(self) -> float:
        """The part of idle KV that counts when a new job asks for room."""
        return self._balance.idle_weight

    def why_hold_back(self, turn: Turn, num_free_blocks: int, *, memory_s: float) -> str | None:
        """Why the turn's job is not let in now; None to let it in. `memory_s` is for how long a
        shortage counts."""
        newcomer = self._resident(turn.job, turn.num_prompt_tokens)
        room = Room(self._num_blocks, num_free_blocks, newcomer, self._residents, self.idle_weight)
        reason = self._policy.why_hold_back(room)
        self._balance.asked(
            self._clock(),
            is_held_back=reason is not None,
            idle_share=self._pins.num_blocks / self._num_blocks,
            memory_s=memory_s,
        )
        return reason

    def left(self, turn: Turn) -> None:
        """The turn is let in, or over."""
        if turn.is_held_back:
            turn.is_held_back = False
            self._balance.left()

    def came_back(self, seconds: float) -> None:
        """To have context again that had left the GPU took so many seconds of the whole pool."""
        self._balance.came_back(self._clock(), seconds)

    def changed(self, job: Job, admitted: Collection[str]) -> None:
        """A job's KV on the GPU is another than before; `admitted` are the requests that run."""
        prompts = [
            turn.num_prompt_tokens for turn in job.live.values() if turn.request_id in admitted
        ]
        pin = self._pins.get(job.job_id)
        if prompts:
            num_tokens = max(*prompts, job.context_tokens)
            self._residents.put(job.job_id, self._resident(job, num_tokens))
        elif pin is not None:
            idle = Resident(len(pin.blocks), *self._expected(job), is_idle=True)
            self._residents.put(job.job_id, idle)
        else:
            self.forget(job.job_id)

    def forget(self, job_id: str) -> None:
        """A job has no KV any more."""
        self._residents.drop(job_id)

    def _resident(self, job: Job, num_tokens: int) -> Resident:
        return Resident(self._footprint.blocks(num_tokens), *self._expected(job))

    def _expected(self, job: Job) -> tuple[float, float]:
        """Turns to come, the present one included, and blocks that each adds."""
        turns_left = self._growth.turns_left(job) + 1.0
        return turns_left, self._footprint.more_blocks(self._growth.tokens_per_turn(job))
