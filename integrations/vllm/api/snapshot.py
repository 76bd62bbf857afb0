"""What an engine looks like at one moment, for those who watch it: the operation `live`.

Runs in the engine between two steps, at most once a second and API server, so its size is bounded:
MAX_DESCRIBED, MAX_JOBS and MAX_EVENTS for all views together. A view is what one client may see:
its own jobs by name, those of others as blocks of the pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

from agentkv.named_classes import label_of
from agentkv.policies.jobs import Job
from agentkv.protocol import JobKey

from ..engine import seam
from ..engine.scheduler import RetainingScheduler
from .job_now import SHOWN_CHARS, name_of

MAX_JOBS = 256
"""Jobs named in a snapshot, those with a request in the engine and the last active first."""
MAX_SCANNED = 1000
"""Turns in the engine among which they are looked for."""
MAX_EVENTS = 200
"""Events in a snapshot, the newest ones."""
HISTORY_S = 120.0
"""Seconds back from which a view that is new gets events: those that the page's lanes show."""

MAX_ENDED = 16
"""Jobs that ended last, of which a view that is new gets how they ended."""

View = tuple[str | None, Mapping[str, float]]
"""A client (None: sees all), and for each engine the time up to which it has its events."""


def live(
    scheduler: RetainingScheduler, stats: Mapping[str, Any], views: Sequence[View]
) -> dict[str, Any]:
    """Describe the pool, the totals that `/stats` has, and for each view its events and the keys of
    its jobs, for which the API server asks in parts."""
    retention, pins = scheduler.retention, scheduler.retention.pins
    engine = str(seam.engine_number(scheduler.vllm_config))
    log = scheduler.watchers.log
    now_s = log.now_s
    num = max(1, len(views))
    described = []
    for client, seen_s in views:
        since_s = seen_s.get(engine, now_s - HISTORY_S)
        events, num_left_out = log.since(since_s, client, MAX_EVENTS // num)
        if engine not in seen_s:
            events = [*log.ended(since_s, client, max(1, MAX_ENDED // num)), *events]
        jobs, name = _jobs_of(scheduler, client, num), partial(name_of, scheduler, client)
        num_own = pins.num_blocks if client is None else pins.num_blocks_of(client)
        described.append(
            {
                "keys": [str(job.job_id) for job in jobs],
                "num_jobs": len(retention.jobs.of(client)),
                "pinned_by_others": max(0, pins.num_blocks - num_own),
                "events": [_shown(scheduler, key, name(key), event) for key, event in events],
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


def _jobs_of(scheduler: RetainingScheduler, client: str | None, num_views: int) -> list[Job]:
    jobs, most = scheduler.retention.jobs, MAX_JOBS // num_views
    turns = islice(jobs.turns.values(), MAX_SCANNED // num_views)
    live = (turn.job for turn in turns if client is None or turn.job.client == client)
    found: dict[str, Job] = {}
    for job in chain(live, reversed(jobs.of(client).values())):
        if jobs.get(job.job_id) is job:
            found[job.job_id] = job
        if len(found) == most:
            break
    return list(found.values())


def _shown(
    scheduler: RetainingScheduler, key: JobKey, job_id: str, entry: Mapping[str, Any]
) -> dict[str, Any]:
    """An event with its job, and the end of a job with its tokens."""
    shown = {"job_id": job_id, **entry}
    if entry["event"] == "closed":
        shown["tokens"] = scheduler.watchers.misses.tokens_of(key)
    command = entry.get("command")
    if command is not None:
        shown["command"] = command[:SHOWN_CHARS]
    return shown
