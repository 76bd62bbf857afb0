"""Describes an engine and its jobs at one moment, for `/jobs` and those who watch `/live`.

Runs in the engine between two steps. A snapshot's size is bounded by MAX_JOBS and MAX_EVENTS. A
client sees its own jobs by name, those of others as blocks of the pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import chain, islice
from typing import Any

from agentkv.durations.ttl import TTL
from agentkv.named_classes import label_of
from agentkv.policies.jobs import Decision, Job, Turn
from agentkv.protocol import JobKey

from ..engine import seam
from ..engine.scheduler import RetainingScheduler
from ..watch.job_view import sentence

MAX_JOBS = 256
"""Jobs named in a snapshot, those with a request in the engine and the last active first."""
MAX_SCANNED = 1000
"""Turns in the engine among which they are looked for."""
MAX_EVENTS = 200
"""Events in a snapshot, the newest ones."""
HISTORY_S = 120.0
"""Seconds back from which a new viewer gets events: those that the page's lanes show."""
_UNDECIDED = Decision(TTL(0.0, ""))


def name_of(scheduler: RetainingScheduler, viewer: str | None, key: JobKey) -> str:
    """Return a job's id; viewers of all (None) read whose it is if several clients have that."""
    is_shared = viewer is None and scheduler.watchers.log.is_shared(key.own_id)
    return f"{key.own_id} of {key.client}" if is_shared else key.own_id


def job_now(scheduler: RetainingScheduler, job: Job, viewer: str | None) -> dict[str, Any]:
    """Describe a job to a viewer, by its turns, its pin and the decision about it."""
    running, waiting = live_turns(scheduler, job)
    named = partial(name_of, scheduler, viewer)
    now_s, pin = scheduler.clock(), scheduler.retention.pins.get(job.job_id)
    decision = job.decision or _UNDECIDED
    ttl = None if job.decision is None else decision.ttl
    if pin is not None:
        ttl = TTL(pin.ttl_s, pin.reason)
    state, since_s, why = _state(scheduler, job, running, waiting)
    prompts = (turn.num_prompt_tokens for turn in job.live.values())
    return {
        "job_id": named(job.job_id),
        "parent_job_id": job.parent_job_id and named(JobKey.read(job.parent_job_id)),
        "inferred": job.is_inferred,
        "state": state,
        "for_s": round(max(0.0, now_s - since_s), 3),
        "why": why,
        "held_back": any(turn.held_back is not None for turn in job.live.values()),
        "turns": job.num_turns,
        "expected_turns": job.expected_turns,
        "live_requests": len(job.live),
        "took_s": round(now_s - job.started_s, 3),
        "idle_s": now_s - job.last_activity_s,
        "tokens": scheduler.watchers.misses.tokens_of(job.job_id),
        "context_tokens": max([job.context_tokens, *prompts]),
        "kv_state": kv_state(scheduler, job),
        "blocks": _num_blocks(scheduler, running) if pin is None else len(pin.blocks),
        "pinned_blocks": 0 if pin is None else len(pin.blocks),
        "ttl_s": None if ttl is None else ttl.seconds,
        "ttl_reason": None if ttl is None else _ttl_reason(scheduler, job, ttl.seconds),
        "ttl_left_s": None if pin is None else max(0.0, pin.expires_s - now_s),
        "last_tool": job.tool,
        # the command only with the decision that was made for it
        "command": None if job.decision is None else job.command_shown,
        "is_tool_running": bool(job.running),
        "predicted_speed": decision.speed,
        "predicted_p50_s": decision.p50_s,
        "predicted_p90_s": decision.p90_s,
        "prediction_source": decision.source,
        "prediction_explanation": decision.explanation,
        "turns_evicted": job.num_evicted,
        "turns_diverged": job.num_diverged,
    }


def live_turns(scheduler: RetainingScheduler, job: Job) -> tuple[list[Turn], list[Turn]]:
    """Return the job's turns that have blocks, and those that wait for some."""
    has_blocks, live = scheduler.admission.has_blocks, job.live.items()
    running = [turn for request_id, turn in live if has_blocks(request_id)]
    return running, [turn for request_id, turn in live if not has_blocks(request_id)]


def kv_state(scheduler: RetainingScheduler, job: Job) -> str:
    """Say where the job's KV is: ACTIVE while a turn has blocks, PINNED, OFFLOADED if a KV tier has
    the end of its context, FREED if it is given up for good, else ALLOCATED."""
    if live_turns(scheduler, job)[0]:
        return "ACTIVE"
    if scheduler.retention.pins.get(job.job_id) is not None:
        return "PINNED"
    if not job.live and job.was_aborted:
        return "FREED"
    is_offloaded = job.tier_key is not None and scheduler.is_in_tier(job.tier_key)
    return "OFFLOADED" if is_offloaded else "ALLOCATED"


def _state(
    scheduler: RetainingScheduler, job: Job, running: list[Turn], waiting: list[Turn]
) -> tuple[str, float, str | None]:
    """Return the job's state, since when it is in it, and why if that needs a reason."""
    pin = scheduler.retention.pins.get(job.job_id)
    if running:
        return "running", running[0].admitted_s or running[0].arrived_s, None
    if waiting:
        turn = waiting[0]
        is_new = turn.admitted_s is None
        in_line = "in line" if is_new else "preempted: its memory went to others"
        return "waiting", turn.arrived_s, turn.held_back or in_line
    if pin is not None and job.running:
        return "tool", job.running[0].started_s, pin.reason
    if pin is not None:
        return "pinned", pin.pinned_s, pin.reason
    return "evicted", job.last_activity_s, job.pin_end


def _ttl_reason(scheduler: RetainingScheduler, job: Job, ttl_s: float) -> str:
    """Return what the page says of the pin: the decision about it, if there is one yet."""
    pin, decision = scheduler.retention.pins.get(job.job_id), job.decision
    is_decided = decision is not None and (pin is None or pin.is_decided)
    given_up = 0 if ttl_s else None
    said = {
        "event": "decision" if is_decided else "pinned",
        "blocks": given_up if pin is None else len(pin.blocks),
        "ttl_s": ttl_s,
        "command": job.command_shown,
    }
    if decision is not None:
        said |= {"p50_s": decision.p50_s, "p90_s": decision.p90_s}
    return sentence(said)


def _num_blocks(scheduler: RetainingScheduler, running: list[Turn]) -> int:
    """Return about how many blocks these turns have."""
    blocks_of = scheduler.retention.costs.blocks_per_token.blocks
    live = (scheduler.requests[turn.request_id] for turn in running)
    return sum(blocks_of(request.num_computed_tokens) for request in live)


def live(
    scheduler: RetainingScheduler, viewer: str | None, seen_s: Mapping[str, float]
) -> dict[str, Any]:
    """Describe the pool, and what happened since the time up to which the viewer has the events of
    each engine. The jobs are named by key, for which the API server asks in parts."""
    retention, pins, log = scheduler.retention, scheduler.retention.pins, scheduler.watchers.log
    engine = str(seam.engine_number(scheduler.vllm_config))
    since_s = seen_s.get(engine, log.now_s - HISTORY_S)
    events = log.newest(MAX_EVENTS, viewer, since_s)
    num_own = pins.num_blocks if viewer is None else pins.num_blocks_of(viewer)
    return {
        "engine": int(engine),
        "at_s": log.now_s,
        "policy": label_of(retention.settings.policy),
        "pool": _pool(scheduler),
        "num_jobs": len(retention.jobs.of(viewer)),
        "keys": _jobs_to_show(scheduler, viewer),
        "pinned_by_others": max(0, pins.num_blocks - num_own),
        "events": [_event_now(scheduler, viewer, key, event) for key, event in events],
    }


def _pool(scheduler: RetainingScheduler) -> dict[str, int]:
    """Return blocks by what they hold; `cached` is free memory that has KV of earlier requests.

    Only the number of cached blocks is known at once: of the blocks in use all count as cached but
    the last one of each running request.
    """
    num_free, num_pinned = scheduler.num_free_blocks(), scheduler.retention.pins.num_blocks
    num_used = scheduler.pool.num_blocks - num_free
    num_cached = scheduler.num_cached_blocks() - max(0, num_used - len(scheduler.running))
    cached = max(0, min(num_free, num_cached))
    return {
        "blocks": scheduler.pool.num_blocks,
        "block_tokens": scheduler.pool.block_tokens,
        "running": max(0, num_used - num_pinned),
        "pinned": num_pinned,
        "cached": cached,
        "free": num_free - cached,
    }


def _jobs_to_show(scheduler: RetainingScheduler, viewer: str | None) -> list[str]:
    jobs = scheduler.retention.jobs
    turns = islice(jobs.turns.values(), MAX_SCANNED)
    live = (turn.job for turn in turns if viewer is None or turn.job.client == viewer)
    found: dict[str, None] = {}
    for job in chain(live, reversed(jobs.of(viewer).values())):
        if jobs.get(job.job_id) is job:
            found[str(job.job_id)] = None
        if len(found) == MAX_JOBS:
            break
    return [*found]


def _event_now(
    scheduler: RetainingScheduler, viewer: str | None, key: JobKey, entry: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an event with its job, and the end of a job with its tokens."""
    event = {"job_id": name_of(scheduler, viewer, key), **entry}
    if entry["event"] == "closed":
        event["tokens"] = scheduler.watchers.misses.tokens_of(key)
    return event
