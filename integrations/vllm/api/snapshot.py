"""What an engine looks like at one moment, for those who watch it: the operation `live`.

Runs in the engine between two steps, at most once a second and API server, so its size is bounded:
MAX_JOBS and MAX_EVENTS for all views together. A view is what one client may see: its own jobs by
name, those of others as blocks of the pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import Any

from agentkv.named_classes import label_of
from agentkv.policies.jobs import Job, Turn
from agentkv.policies.pins import Pin
from agentkv.protocol import JobKey

from ..engine import seam
from ..engine.scheduler import RetainingScheduler
from ..watch.job_view import sentence

MAX_JOBS = 256
"""Jobs described in a snapshot, those with a request in the engine and the last active first."""
MAX_EVENTS = 200
"""Events in a snapshot, the newest ones."""
HISTORY_S = 120.0
"""Seconds back from which a view that is new gets events: those that the page's lanes show."""
SHOWN_CHARS = 160
"""Characters shown of a command."""

View = tuple[str | None, Mapping[str, float]]
"""A client (None: sees all), and for each engine the time up to which it has its events."""


def live(
    scheduler: RetainingScheduler, stats: Mapping[str, Any], views: Sequence[View]
) -> dict[str, Any]:
    """Describe the pool, the totals that `/stats` has, and for each view its jobs and events."""
    retention = scheduler.retention
    engine = str(seam.engine_number(scheduler.vllm_config))
    log = scheduler.watchers.log
    now_s = log.now_s
    most_jobs, most_events = MAX_JOBS // max(1, len(views)), MAX_EVENTS // max(1, len(views))
    described = []
    for client, seen_s in views:
        events, num_left_out = log.since(seen_s.get(engine, now_s - HISTORY_S), client, most_events)
        jobs = _jobs_of(scheduler, client, most_jobs)
        described.append(
            {
                "jobs": [_describe(scheduler, job) for job in jobs],
                "num_jobs": retention.jobs.num_of(client),
                "held_by_others": _held_by_others(scheduler, client),
                "events": [_shown(key, event) for key, event in events],
                "events_left_out": num_left_out,
            }
        )
    return {
        "engine": int(engine),
        "at_s": now_s,
        "policy": label_of(retention.settings.policy),
        "pool": _pool(scheduler),
        "stats": stats,
        "views": described,
    }


def _pool(scheduler: RetainingScheduler) -> dict[str, int]:
    """Blocks by what they hold; `cached` is free memory that still has KV of earlier requests.

    Only the number of cached blocks is known at once: of the blocks in use all count as cached but
    the last one of each running request.
    """
    num_free, num_held = scheduler.num_free_blocks(), scheduler.retention.pins.num_blocks
    num_used = scheduler.pool.num_blocks - num_free
    num_cached = scheduler.num_cached_blocks() - max(0, num_used - len(scheduler.running))
    cached = max(0, min(num_free, num_cached))
    return {
        "blocks": scheduler.pool.num_blocks,
        "block_tokens": scheduler.pool.block_tokens,
        "running": max(0, num_used - num_held),
        "held": num_held,
        "cached": cached,
        "free": num_free - cached,
    }


def _held_by_others(scheduler: RetainingScheduler, client: str | None) -> int:
    pins = scheduler.retention.pins
    return 0 if client is None else max(0, pins.num_blocks - pins.num_blocks_of(client))


def _jobs_of(scheduler: RetainingScheduler, client: str | None, most: int) -> list[Job]:
    jobs = scheduler.retention.jobs
    live = (turn.job for turn in jobs.turns.values() if client is None or turn.job.client == client)
    first = dict.fromkeys(job.job_id for job in islice(chain(live, jobs.latest(client)), 2 * most))
    found = (jobs.get(job_id) for job_id in islice(first, most))
    return [job for job in found if job is not None]


def _describe(scheduler: RetainingScheduler, job: Job) -> dict[str, Any]:
    pin = scheduler.retention.pins.get(job.job_id)
    decision = job.decision
    running, waiting = _turns(scheduler, job)
    state, since_s, why = _state(scheduler, job, pin, running, waiting)
    command = None if decision is None else job.command_shown
    prompt_tokens = max((turn.num_prompt_tokens for turn in (*running, *waiting)), default=0)
    return {
        "job_id": job.own_id,
        "parent_job_id": job.parent_job_id and JobKey.read(job.parent_job_id).own_id,
        "state": state,
        "for_s": round(max(0.0, scheduler.clock() - since_s), 3),
        "why": why,
        "held_back": any(turn.held_back is not None for turn in waiting),
        "turn": job.num_turns,
        "expected_turns": job.expected_turns,
        "tokens": max(job.context_tokens, prompt_tokens),
        "blocks": _num_blocks(scheduler, pin, running),
        "tool": job.tool,
        "command": None if command is None else command[:SHOWN_CHARS],
        "is_tool_running": bool(job.running),
        "predicted_speed": None if decision is None else decision.speed,
        "predicted_p50_s": None if decision is None else decision.p50_s,
        "predicted_p90_s": None if decision is None else decision.p90_s,
        "ttl_left_s": None if pin is None else max(0.0, pin.expires_s - scheduler.clock()),
    }


def _turns(scheduler: RetainingScheduler, job: Job) -> tuple[list[Turn], list[Turn]]:
    """The turns of a job that hold blocks, and those that wait."""
    running: list[Turn] = []
    waiting: list[Turn] = []
    for request_id, turn in job.live.items():
        request = scheduler.requests.get(request_id)
        is_running = request is not None and seam.is_running(request)
        (running if is_running else waiting).append(turn)
    return running, waiting


def _state(
    scheduler: RetainingScheduler,
    job: Job,
    pin: Pin[Any] | None,
    running: Sequence[Turn],
    waiting: Sequence[Turn],
) -> tuple[str, float, str | None]:
    """The job's state, since when it is in it, and why if that needs a reason."""
    if running:
        return "running", running[0].admitted_s or running[0].arrived_s, None
    if waiting:
        turn = waiting[0]
        if turn.held_back is not None:
            return "waiting", turn.arrived_s, turn.held_back
        why = "in line" if turn.admitted_s is None else "preempted: its memory went to others"
        return "waiting", turn.arrived_s, why
    if pin is not None and job.running:
        return "tool", job.running[0].started_s, pin.reason
    if pin is not None:
        return "held", pin.pinned_s, pin.reason
    return "evicted", job.last_activity_s, job.hold_end


def _num_blocks(
    scheduler: RetainingScheduler, pin: Pin[Any] | None, running: Sequence[Turn]
) -> int:
    """Blocks of a job's pin, else about those of its running turns."""
    if pin is not None:
        return len(pin.blocks)
    num_tokens = [scheduler.requests[turn.request_id].num_computed_tokens for turn in running]
    return sum(-(-tokens // scheduler.pool.block_tokens) for tokens in num_tokens)


def _shown(key: JobKey, entry: Mapping[str, Any]) -> dict[str, Any]:
    """An event with its job and what it says in words."""
    shown = {"job_id": key.own_id, **entry, "text": sentence(entry)}
    command = entry.get("command")
    if command is not None:
        shown["command"] = command[:SHOWN_CHARS]
    return shown
