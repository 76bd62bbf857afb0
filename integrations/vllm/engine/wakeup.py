"""Engine time: a clock that stands still in a pause, what wakes an idle engine, and timed steps.

An idle EngineCore blocks on its input queue (EngineCoreProc._process_input_queue, core.py:1573 of
vLLM 0.32.0); without a wake-up nothing would expire there. RetainingScheduler sets the deadlines.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.request import Request

from ..retention.costs import Step, StepTimeModel
from . import seam

if TYPE_CHECKING:
    from .scheduler import RetainingScheduler


class EngineClock:
    """Counts seconds, but for those in which the engine is paused."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._behind_s = 0.0
        """By how much it is behind `monotonic`, because of all pauses that are over."""
        self._stopped_s: float | None = None

    def __call__(self) -> float:
        stopped_s = self._stopped_s
        return self._monotonic() - self._behind_s if stopped_s is None else stopped_s

    def stop(self) -> None:
        """Stand still from now on, unless it does already."""
        self._stopped_s = self()

    def go_on(self) -> None:
        """Go on from where it stood still."""
        self._behind_s = self._monotonic() - self()
        self._stopped_s = None

    def on_monotonic(self, time_s: float) -> float | None:
        """Return when it will be that time, on `monotonic`; None while it stands still."""
        return time_s + self._behind_s if self._stopped_s is None else None


class ExpiryTimer:
    """Calls `wake` in a daemon thread once the earliest deadline has passed.

    Deadlines are seconds on `time.monotonic`. `set_deadline` takes a lock that is never held
    while waiting or waking, so the engine's main thread is not held up.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._deadline_s: float | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="agentkv-expiry", daemon=True).start()

    def set_deadline(self, deadline_s: float) -> None:
        """Wake at `deadline_s` at the latest; a later deadline than the one set is ignored."""
        with self._changed:
            if self._deadline_s is None or deadline_s < self._deadline_s:
                self._deadline_s = deadline_s
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._deadline_s is None or self._deadline_s > time.monotonic():
                    self._changed.wait(
                        None if self._deadline_s is None else self._deadline_s - time.monotonic()
                    )
                self._deadline_s = None
            self._wake()


class EngineWaker:
    """Wakes the busy loop of the scheduler's engine.

    Without an engine, as in the simulator and in most tests, it does nothing.
    """

    def __init__(self, clock: EngineClock) -> None:
        self._clock = clock
        self._engine: Any = None
        self._timer: ExpiryTimer | None = None

    @property
    def is_attached(self) -> bool:
        return self._engine is not None

    def attach(self, engine: Any) -> None:
        """Take the engine that runs the scheduler; called once."""
        self._engine = engine
        self._timer = ExpiryTimer(self.wake)

    def wake(self) -> None:
        """Make an idle engine look at its scheduler; callable from any thread."""
        if self._engine is not None:
            seam.wake(self._engine)

    def wake_at(self, time_s: float) -> None:
        """Wake the engine at a time on its clock, if that does not stand still."""
        if self._timer is not None:
            real_s = self._clock.on_monotonic(time_s)
            if real_s is not None:
                self._timer.set_deadline(real_s)

    def push_stats(self, stats: SchedulerStats) -> None:
        """Send stats without waiting for a step's outputs."""
        if self._engine is not None:
            seam.push_stats(self._engine, stats)


MAX_UNDER_WAY = 16
"""Steps scheduled but not yet processed; beyond that some never will be, and all are forgotten."""


class StepTimer:
    """Follows each step from when it is scheduled, or the one before ends, to its outputs."""

    def __init__(self, model: StepTimeModel, scheduler: RetainingScheduler) -> None:
        self._model = model
        self._scheduler = scheduler
        self._prefilling: dict[str, Request] = {}
        self._under_way: dict[int, tuple[Step, float, list[str]]] = {}
        """Steps with when they began, and the requests whose prompts they end."""
        self._processed_s = 0.0

    def step_scheduled(self, output: SchedulerOutput, requests: dict[str, Request]) -> None:
        """Note that a step begins, unless it computes nothing. O(requests in their prefill)."""
        if not output.total_num_scheduled_tokens:
            return
        for request_id in seam.admitted_ids(output):
            self._prefilling[request_id] = requests[request_id]
        num_tokens = squares = 0
        prefilled = []
        for request_id, request in list(self._prefilling.items()):
            num_new = output.num_scheduled_tokens.get(request_id, 0)
            end = request.num_computed_tokens
            num_tokens += num_new
            squares += end**2 - (end - num_new) ** 2
            if end >= request.num_tokens or not seam.is_running(request):
                del self._prefilling[request_id]
                prefilled.append(request_id)
        if len(self._under_way) >= MAX_UNDER_WAY:
            self._under_way.clear()
        scheduler = self._scheduler
        step = Step(num_tokens, squares, *scheduler.memory_use(), scheduler.num_steps(output))
        self._under_way[id(output)] = (step, scheduler.monotonic(), prefilled)

    def step_processed(self, output: SchedulerOutput) -> None:
        """Learn from the duration of a step whose outputs have been processed."""
        now_s = self._scheduler.monotonic()
        step, began_s, prefilled = self._under_way.pop(id(output), (None, 0.0, []))
        if step is not None:
            self._model.observe(step, now_s - max(began_s, self._processed_s))
        for turn in filter(None, map(self._scheduler.retention.jobs.turns.get, prefilled)):
            if turn.ttft_s is None:
                turn.ttft_s = round(self._scheduler.clock() - turn.arrived_s, 6)
        self._processed_s = now_s
