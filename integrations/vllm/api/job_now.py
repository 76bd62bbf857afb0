"""What a job does at one moment, from which `/jobs` and `/live` make their answers.

Runs in the engine between two steps. Knows the scheduler and its retention, no route and no client.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from agentkv.durations.ttl import TTL
from agentkv.policies.jobs import Decision, Job
from agentkv.protocol import JobKey

from ..engine.scheduler import RetainingScheduler
from ..watch.job_view import sentence

SHOWN_CHARS = 160
"""Characters of a command that the live page shows."""
_UNDECIDED = Decision(TTL(0.0, ""))


def name_of(scheduler: RetainingScheduler, viewer: str | None, key: JobKey) -> str:
    """A job's id; viewers of all (None) read whose it is if jobs of several clients have that."""
    is_shared = viewer is None and scheduler.watchers.log.num_named[key.own_id] > 1
    return f"{key.own_id} of {key.client}" if is_shared else key.own_id


class JobNow:
    """A job with its pin, its turns that have blocks, and its turns that wait for some."""

    def __init__(self, scheduler: RetainingScheduler, job: Job, viewer: str | None = None) -> None:
        has_blocks = scheduler.admission.has_blocks
        self._name_of = partial(name_of, scheduler, viewer)
        self._scheduler = scheduler
        self._job = job
        self.pin = scheduler.retention.pins.get(job.job_id)
        self._now_s = scheduler.clock()
        self._running = [turn for name, turn in job.live.items() if has_blocks(name)]
        self._waiting = [turn for name, turn in job.live.items() if not has_blocks(name)]

    def kv_state(self) -> str:
        """Where the job's KV is: ACTIVE while a turn has blocks, PINNED, OFFLOADED if a KV tier has
        the end of its context, FREED if it is given up for good, else ALLOCATED."""
        job = self._job
        if self._running:
            return "ACTIVE"
        if self.pin is not None:
            return "PINNED"
        if not job.live and job.was_aborted:
            return "FREED"
        is_offloaded = job.tier_key is not None and self._scheduler.is_in_tier(job.tier_key)
        return "OFFLOADED" if is_offloaded else "ALLOCATED"

    def _state(self) -> tuple[str, float, str | None]:
        """The job's state, since when it is in it, and why if that needs a reason."""
        job, pin = self._job, self.pin
        if self._running:
            turn = self._running[0]
            return "running", turn.admitted_s or turn.arrived_s, None
        if self._waiting:
            turn = self._waiting[0]
            is_new = turn.admitted_s is None
            in_line = "in line" if is_new else "preempted: its memory went to others"
            return "waiting", turn.arrived_s, turn.held_back or in_line
        if pin is not None and job.running:
            return "tool", job.running[0].started_s, pin.reason
        if pin is not None:
            return "pinned", pin.pinned_s, pin.reason
        return "evicted", job.last_activity_s, job.pin_end

    def _shared(self) -> dict[str, Any]:
        """What both answers say; the command only with the decision that was made for it."""
        job, decision = self._job, self._job.decision or _UNDECIDED
        return {
            "job_id": self._name_of(job.job_id),
            "parent_job_id": job.parent_job_id and self._name_of(JobKey.read(job.parent_job_id)),
            "expected_turns": job.expected_turns,
            "held_back": any(turn.held_back is not None for turn in job.live.values()),
            "tokens": self._scheduler.watchers.misses.tokens_of(job.job_id),
            "command": None if job.decision is None else job.command_shown,
            "predicted_speed": decision.speed,
            "predicted_p50_s": decision.p50_s,
            "predicted_p90_s": decision.p90_s,
            "ttl_left_s": None if self.pin is None else max(0.0, self.pin.expires_s - self._now_s),
        }

    def as_listed(self) -> dict[str, Any]:
        """The job as `/jobs` has it; its TTL counts from the end of the turn."""
        job, pin, decision = self._job, self.pin, self._job.decision or _UNDECIDED
        ttl = None if job.decision is None else decision.ttl
        if pin is not None:
            ttl = TTL(pin.ttl_s, pin.reason)
        return {
            **self._shared(),
            "inferred": job.is_inferred,
            "turns": job.num_turns,
            "live_requests": len(job.live),
            "context_tokens": job.context_tokens,
            "pinned_blocks": 0 if pin is None else len(pin.blocks),
            "kv_state": self.kv_state(),
            "ttl_s": None if ttl is None else ttl.seconds,
            "ttl_reason": None if ttl is None else self._ttl_reason(ttl.seconds),
            "prediction_source": decision.source,
            "prediction_explanation": decision.explanation,
            "last_tool": job.tool,
            "turns_evicted": job.num_evicted,
            "turns_diverged": job.num_diverged,
            "idle_s": self._now_s - job.last_activity_s,
        }

    def _ttl_reason(self, ttl_s: float) -> str:
        """What the page says of the pin: the decision about it, if there is one yet."""
        pin, decision = self.pin, self._job.decision
        is_decided = decision is not None and (pin is None or pin.is_decided)
        given_up = 0 if ttl_s else None
        said = {
            "event": "decision" if is_decided else "pinned",
            "blocks": given_up if pin is None else len(pin.blocks),
            "ttl_s": ttl_s,
            "command": self._job.command_shown,
        }
        if decision is not None:
            said |= {"p50_s": decision.p50_s, "p90_s": decision.p90_s}
        return sentence(said)

    def as_watched(self) -> dict[str, Any]:
        """The job as a snapshot of `/live` has it."""
        job, shared = self._job, self._shared()
        state, since_s, why = self._state()
        prompts = (turn.num_prompt_tokens for turn in job.live.values())
        return {
            **shared,
            "command": shared["command"] and shared["command"][:SHOWN_CHARS],
            "state": state,
            "for_s": round(max(0.0, self._now_s - since_s), 3),
            "why": why,
            "turn": job.num_turns,
            "took_s": round(self._now_s - job.started_s, 3),
            "context_tokens": max(job.context_tokens, *prompts, 0),
            "blocks": self._num_blocks(),
            "tool": job.tool,
            "is_tool_running": bool(job.running),
        }

    def _num_blocks(self) -> int:
        """Blocks of the pin, else about those of the running turns."""
        if self.pin is not None:
            return len(self.pin.blocks)
        blocks_of = self._scheduler.retention.costs.blocks_per_token.blocks
        live = (self._scheduler.requests[turn.request_id] for turn in self._running)
        return sum(blocks_of(request.num_computed_tokens) for request in live)
