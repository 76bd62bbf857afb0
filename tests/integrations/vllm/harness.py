"""vLLM's real scheduler and block pool without a model, with what the tests of the plugin ask."""

import queue
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from agentkv.policies.names import default_settings, load_policy
from agentkv.protocol import CLIENT_FIELD, ToolEvent
from studies.grid.ablation import ABLATIONS
from tests.stepped_engine import SteppedEngine

STOCK = {False: Scheduler, True: AsyncScheduler}


def of(client: str, **tags: Any) -> dict[str, Any]:
    """The tags of a client's request as the API server hands them over."""
    return {CLIENT_FIELD: client, **tags}


class Engine(SteppedEngine):
    """An engine stepped by hand; `without` are the rules of `agentkv` that are left out.

    Settings that its policy does not take are left out, so that one table of them serves all.
    """

    def __init__(self, *, without: Sequence[str] = (), **options: Any) -> None:
        if without:
            rules = tuple(ABLATIONS[name] for name in without)
            options["policy_class"] = type("Ablated", rules, {})
        taken = load_policy(options.get("policy", "continuum")).settings_class.model_fields
        others = default_settings().keys() - taken.keys()
        super().__init__(**{key: value for key, value in options.items() if key not in others})

    @property
    def retention(self) -> Any:
        return self.scheduler.retention

    @property
    def totals(self) -> dict[str, Any]:
        """What was counted so far."""
        return dict(self.scheduler.watchers.counters.totals())

    @property
    def pinned(self) -> dict[str, int]:
        """Pinned blocks per job."""
        return {pin.job_id: len(pin.blocks) for pin in self.scheduler.retention.pins}

    @property
    def pin_ends(self) -> dict[str, int]:
        return dict(self.totals.get("pin_ends_total", {}))

    @property
    def events(self) -> dict[str, Any]:
        """The event log, by job."""
        return dict(self.scheduler.watchers.log.as_dict()["jobs"])

    def running(self) -> list[str]:
        return [request.request_id for request in self.scheduler.running]

    def waiting(self) -> list[str]:
        return [request.request_id for request in self.scheduler.waiting]

    def steps(self, num: int) -> None:
        for _ in range(num):
            self.step()

    def tool(self, job_id: str, state: Any, command: str = "ls", **told: Any) -> None:
        """A client's signal for a live job."""
        event = ToolEvent(state=state, command=command, **told)
        assert self.scheduler.retention.tool_signal(job_id, event) is not None

    def end_pin(self, job_id: str) -> None:
        """End a job's pin as a full pool does."""
        retention = self.scheduler.retention
        retention.end_pin(retention.pins.get(job_id), "pressure")

    def attach(self) -> queue.SimpleQueue[Any]:
        """Let the scheduler believe in a busy loop; answers with the queue that wakes it.

        The clock moves ahead of the real one, so that the expiry timer never does.
        """
        self.clock.now_s = time.monotonic() + 1e6
        loop = SimpleNamespace(input_queue=queue.SimpleQueue(), output_queue=queue.SimpleQueue())
        # vLLM's queues; SimpleQueue has all of theirs that the plugin uses
        self.scheduler.attach(loop)
        return loop.input_queue
