"""Times the prefills of one engine, for what it costs to rebuild a context."""

from __future__ import annotations

from collections.abc import Callable

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from . import seam
from .prefill_fit import PrefillFit


class PrefillWatch:
    """Follows each admitted request to its first token; one preempted before tells nothing."""

    def __init__(self, fit: PrefillFit, clock: Callable[[], float]) -> None:
        self._fit = fit
        self._clock = clock
        self._prefilling: dict[str, tuple[Request, float, int]] = {}

    def step_scheduled(self, output: SchedulerOutput, requests: dict[str, Request]) -> None:
        """Requests start their prefills behind the tokens that were in the cache."""
        for request_id in seam.admitted_ids(output):
            request = requests[request_id]
            hit_tokens = request.num_computed_tokens - output.num_scheduled_tokens[request_id]
            self._prefilling[request_id] = (request, self._clock(), hit_tokens)

    def step_processed(self, output: SchedulerOutput) -> None:
        """Learn from the prefills that are done."""
        if not self._prefilling:
            return
        done = [
            request_id
            for request_id, (request, _, _) in self._prefilling.items()
            if request.num_output_tokens or request.is_finished() or not seam.is_running(request)
        ]
        now_s = self._clock()
        for request_id in done:
            request, started_s, hit_tokens = self._prefilling.pop(request_id)
            if request.num_output_tokens and not request.num_preemptions:
                self._fit.observe(hit_tokens, request.num_prompt_tokens, now_s - started_s)
