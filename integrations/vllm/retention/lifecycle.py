"""The KV of each job from its first request to the end of the job: its state, and when it is gone.

Only the end of a job, or the abort of its only turn, is terminal: listeners get one call for each.
A swap to a KV tier and back is none, and blocks that a job loses while it goes on are announced
with its end. Called by RetentionManager on the engine's main thread; knows nothing of vLLM.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from agentkv.listeners import FreeReason, KVFree
from agentkv.policies.jobs import Job, Turn

from ..telemetry.event_log import EventLog
from ..telemetry.listeners import Listeners
from . import Host
from .pin_lifecycle import PinTable

KVState = Literal[
    "ALLOCATED",  # the job goes on, and the engine holds no block for it now
    "ACTIVE",  # a turn of the job has blocks
    "PINNED",  # no turn has, and blocks are kept for the next one
    "OFFLOADED",  # no block is held on the device, and a KV tier has the end of its context
    "FREED",  # given up for good
]

MAX_REQUESTS = 1000
"""Requests of one job that a free names, the last ones."""

_CHILD = re.compile(r"^\d+_(?=(?:chat)?cmpl-)")
_RANDOM_END = re.compile(r"-[0-9a-f]{8}$")
_PROMPT_NUMBER = re.compile(r"^(cmpl-.*)-\d+$")


def reply_id(request_id: str) -> str:
    """The `id` of the reply that a request of the engine belongs to.

    vLLM's API server puts the number of a choice before it, and behind it that of a completion's
    prompt and eight random digits (vllm/v1/engine/input_processor.py:371, 0.32.0).
    """
    request_id = _RANDOM_END.sub("", _CHILD.sub("", request_id))
    return _PROMPT_NUMBER.sub(r"\1", request_id)


@dataclass(slots=True)
class JobKV:
    """What is known of one job's KV."""

    state: KVState = "FREED"
    request_ids: dict[str, None] = field(default_factory=dict)
    """Requests since the last free, in order."""
    was_freed: bool = False
    """A free has named its first requests."""
    tier_key: Any = None
    """By which the KV tier knows the end of its context; None without one."""


class KVLifecycle:
    """The states of all jobs' KV, and the terminal frees among what happens to it."""

    def __init__(
        self,
        host: Host,
        pins: PinTable[Any],
        has_blocks: Callable[[str], bool],
        events: EventLog,
        listeners: Listeners,
    ) -> None:
        """`has_blocks` answers for a request; `listeners` get the terminal frees."""
        self._host = host
        self._pins = pins
        self._has_blocks = has_blocks
        self._events = events
        self._listeners = listeners
        self._num_frees = 0
        self._jobs: dict[str, JobKV] = {}

    def turn_arrived(self, turn: Turn) -> None:
        """A request of a job has come, which its next free names."""
        job = turn.job
        kv = self._jobs.setdefault(job.job_id, JobKV())
        if not (kv.request_ids or kv.was_freed) and job.is_inferred and job.num_turns <= 2:
            # The request that opened the job came before it was known to be one.
            kv.request_ids[reply_id(job.own_id.removeprefix("inferred-"))] = None
        kv.request_ids[reply_id(turn.request_id)] = None
        if len(kv.request_ids) > MAX_REQUESTS:
            del kv.request_ids[next(iter(kv.request_ids))]
        self.changed(job)

    def turn_finished(self, job: Job, block_hashes: list[Any]) -> None:
        """A turn has left a context with these full blocks."""
        kv = self._jobs.get(job.job_id)
        if kv is not None:
            kv.tier_key = self._host.tier_key(block_hashes)

    def state(self, job: Job) -> KVState:
        """Where the job's KV is now."""
        kv = self._jobs.get(job.job_id)
        if any(self._has_blocks(request_id) for request_id in job.live):
            return "ACTIVE"
        if self._pins.get(job.job_id) is not None:
            return "PINNED"
        if kv is None or not kv.request_ids:
            return "FREED"
        if kv.tier_key is not None and self._host.is_in_tier(kv.tier_key):
            return "OFFLOADED"
        return "ALLOCATED"

    def changed(self, job: Job) -> None:
        """A job's turns or pin have changed: log its state if that is another one."""
        kv = self._jobs.get(job.job_id)
        if kv is not None and (state := self.state(job)) != kv.state:
            kv.state = state
            self._events.add(job.job_id, "kv_state", state=state)

    def freed(self, job: Job, reason: FreeReason) -> None:
        """The KV of a job is given up for good: log it, and call the listeners."""
        kv = self._jobs.get(job.job_id)
        if kv is None or not kv.request_ids:
            return
        self._num_frees += 1
        free = KVFree(self._num_frees, job.own_id, tuple(kv.request_ids), reason)
        kv.request_ids.clear()
        kv.was_freed = True
        kv.tier_key, kv.state = None, "FREED"
        self._events.add(
            job.job_id,
            "kv_freed",
            state="FREED",
            number=free.number,
            reason=reason,
            request_ids=list(free.request_ids),
        )
        self._listeners.put(free)

    def job_ended(self, job: Job, reason: FreeReason) -> None:
        """The job is over: free what it had, and forget it."""
        self.freed(job, reason)
        self._jobs.pop(job.job_id, None)
