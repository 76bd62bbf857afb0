"""The simulator's door to the plugin: schedulers are built, signalled and read here, nowhere else.

Imports vLLM. A stock scheduler has no plugin: it reports nothing and takes no signals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from agentkv.integrations.vllm.api import engine_side

from .machine import Machine
from .vllm_scheduler import SchedulerShape, build_scheduler, quiet_vllm


def make_scheduler(
    machine: Machine,
    settings: Mapping[str, Any] | None,
    *,
    clock: Callable[[], float],
    decode: Callable[[list[int]], str],
    connector: Mapping[str, Any] | None = None,
) -> Any:
    """A scheduler of this machine with the plugin's settings; None for vLLM's own.

    Where time is virtual, a policy may take as long to answer as it likes.
    """
    quiet_vllm()
    shape = SchedulerShape(
        num_blocks=machine.num_blocks,
        block_tokens=machine.block_tokens,
        max_num_seqs=machine.max_num_seqs,
        max_num_batched_tokens=machine.max_num_batched_tokens,
        max_model_tokens=machine.max_model_tokens,
        num_state_groups=machine.num_state_groups,
        settings=settings,
        connector=connector,
    )
    scheduler = build_scheduler(shape, clock=clock, decode=decode)
    if settings is not None:
        scheduler.retention.policy.guard.max_answer_s = math.inf
    return scheduler


class Plugin:
    """What the plugin in one engine's scheduler says."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._retention = getattr(scheduler, "retention", None)

    @property
    def next_expiry_s(self) -> float:
        """Time at which the next pin expires; infinity without pins."""
        expiry_s = None if self._retention is None else self._retention.pins.next_expiry_s
        return math.inf if expiry_s is None else float(expiry_s)

    @property
    def next_tick_s(self) -> float:
        """Time at which the policy looks at its jobs again; infinity without such a time."""
        return math.inf if self._retention is None else float(self._retention.admission.next_tick_s)

    def totals(self) -> dict[str, Any]:
        """The plugin's counters."""
        return {} if self._retention is None else dict(self._scheduler.watchers.counters.totals())

    def events(self) -> dict[str, Any] | None:
        """The plugin's event log, as `GET /v1/agentkv/timestamps` answers."""
        return None if self._retention is None else dict(self._scheduler.watchers.log.as_dict())

    def signal(self, op: str, job_key: str, *args: Any) -> None:
        """Hand it a tool event ("tool") or the release of a job ("release")."""
        engine_side.call(self._scheduler, op, [job_key, *args])
