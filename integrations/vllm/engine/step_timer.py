"""Times the steps of one engine and describes what each computes, for StepTimeModel."""

from __future__ import annotations

from typing import Protocol

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from ..policy.costs import Step, StepTimeModel
from . import seam

MAX_UNDER_WAY = 16
"""Steps scheduled but not yet processed; beyond that some never will be, and all are forgotten."""


class TimedScheduler(Protocol):
    """What StepTimer asks of the scheduler whose steps it times."""

    def clock(self) -> float: ...

    def memory_use(self) -> tuple[float, float]: ...

    def num_steps(self, output: SchedulerOutput) -> int: ...


class StepTimer:
    """Follows each step from when it is scheduled, or the one before ends, to its outputs."""

    def __init__(self, model: StepTimeModel, scheduler: TimedScheduler) -> None:
        self._model = model
        self._scheduler = scheduler
        self._prefilling: dict[str, Request] = {}
        self._under_way: dict[int, tuple[Step, float]] = {}
        self._processed_s = 0.0

    def step_scheduled(self, output: SchedulerOutput, requests: dict[str, Request]) -> None:
        """A step begins; one that computes nothing is ignored. O(requests in their prefill)."""
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
        scheduler = self._scheduler
        step = Step(num_tokens, squares, *scheduler.memory_use(), scheduler.num_steps(output))
        self._under_way[id(output)] = (step, scheduler.clock())

    def step_processed(self, output: SchedulerOutput) -> None:
        """A step's outputs have been processed: learn from its duration."""
        now_s = self._scheduler.clock()
        step, began_s = self._under_way.pop(id(output), (None, 0.0))
        if step is not None:
            self._model.observe(step, now_s - max(began_s, self._processed_s))
        self._processed_s = now_s
