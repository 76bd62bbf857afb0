"""Times the steps of one engine, for what computing a context anew adds to them."""

from __future__ import annotations

from collections.abc import Callable

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from ..policy.costs import Step, StepFit
from . import seam

MAX_UNDER_WAY = 16
"""Steps scheduled and not yet processed; beyond that some never will be, and all are forgotten."""


class StepWatch:
    """Follows each step from where it is scheduled, or the one before ends, to its outputs.

    `memory` says how many tokens of KV running requests have and which part of the pool pins have,
    `num_steps` how many steps an output stands for.
    """

    def __init__(
        self,
        fit: StepFit,
        clock: Callable[[], float],
        *,
        memory: Callable[[], tuple[float, float]],
        num_steps: Callable[[SchedulerOutput], int],
    ) -> None:
        self._fit = fit
        self._clock = clock
        self._memory = memory
        self._num_steps = num_steps
        self._prefilling: dict[str, Request] = {}
        self._under_way: dict[int, tuple[Step, float]] = {}
        self._processed_s = 0.0

    def step_scheduled(self, output: SchedulerOutput, requests: dict[str, Request]) -> None:
        """A step begins; one that computes nothing tells nothing. O(requests in their prefill)."""
        if not output.total_num_scheduled_tokens:
            return
        for request_id in seam.admitted_ids(output):
            self._prefilling[request_id] = requests[request_id]
        num_tokens = squares = 0
        for request_id, request in list(self._prefilling.items()):
            num_new = output.num_scheduled_tokens.get(request_id, 0)
            end = request.num_computed_tokens
            num_tokens += num_new
            squares += end**2 - (end - num_new) ** 2
            if end >= request.num_tokens or not seam.is_running(request):
                del self._prefilling[request_id]
        if len(self._under_way) >= MAX_UNDER_WAY:
            self._under_way.clear()
        step = Step(num_tokens, squares, *self._memory(), self._num_steps(output))
        self._under_way[id(output)] = (step, self._clock())

    def step_processed(self, output: SchedulerOutput) -> None:
        """Learn from a step whose outputs are there."""
        now_s = self._clock()
        step, began_s = self._under_way.pop(id(output), (None, 0.0))
        if step is not None:
            self._fit.observe(step, now_s - max(began_s, self._processed_s))
        self._processed_s = now_s
