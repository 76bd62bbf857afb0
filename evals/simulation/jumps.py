"""Several decode steps at once, where the scheduler would decide the same in each of them.

A jump hands each running request more than one token to compute, as speculative decoding does, and
prices every step of it. It ends before anything happens: a request's last token, an event, memory
running out. So it changes nothing but how long the simulation takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from .cost import Batch, CostModel
from .live_turn import LiveTurn


class JumpPlanner:
    """Decides how far the engine may jump."""

    def __init__(self, cost: CostModel, *, block_tokens: int, max_batch_tokens: int) -> None:
        self._cost = cost
        self._block_tokens = block_tokens
        self._max_batch_tokens = max_batch_tokens

    def plan(
        self, turns: Sequence[LiveTurn], *, num_free_blocks: int, left_s: float
    ) -> list[float]:
        """When each step of a jump of all running turns ends, in seconds from its start.

        The last step is the first to end at or after `left_s`, as a step under way would. Empty
        where no jump of two steps or more is possible.
        """
        if not turns or any(turn.is_prefilling for turn in turns):
            return []
        limit = min(turn.num_left for turn in turns)
        limit = min(limit, self._max_batch_tokens // len(turns))
        while limit > 1 and self._num_new_blocks(turns, limit) > num_free_blocks:
            limit //= 2
        if limit < 2:
            return []
        ends_s = self._priced(turns, limit, left_s)
        return ends_s if len(ends_s) > 1 else []

    def _num_new_blocks(self, turns: Sequence[LiveTurn], num_tokens: int) -> int:
        size = self._block_tokens
        return sum(
            -(-(turn.computed_tokens + num_tokens) // size) - -(-turn.computed_tokens // size)
            for turn in turns
        )

    def _priced(self, turns: Sequence[LiveTurn], limit: int, left_s: float) -> list[float]:
        batch = Batch()
        for turn in turns:
            batch.add_decode(turn.computed_tokens)
        ends_s: list[float] = []
        end_s = 0.0
        while len(ends_s) < limit and end_s < left_s:
            end_s += self._cost.step_s(batch)
            ends_s.append(end_s)
            batch.context_tokens += batch.num_decodes
        return ends_s
