"""Runs the operations behind the `/v1/agentkv` routes in the engine.

Called through vLLM's utility calls by `engine_client`, on the engine's main thread between two
steps. Arguments and answers are plain data; a job is named by its key (see `protocol.job_key`),
and answers have the id that its client gave it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from itertools import islice
from operator import attrgetter
from typing import Any
from uuid import uuid4

import msgspec
import vllm

import agentkv
from agentkv.errors import AgentKVError
from agentkv.named_classes import label_of
from agentkv.policies.names import default_settings
from agentkv.protocol import WIRE_VERSION, JobKey, parse_tool_event

from ..engine import seam
from ..engine.scheduler import RetainingScheduler
from ..watch.counters import COUNTERS
from ..watch.job_view import job_views
from ..watch.log import shown
from . import snapshot
from .snapshot import job_now, name_of

MAX_TURNS = 64
"""Turns of a job that are shown, the last ones."""
MAX_READ = 170
"""Events of a job from which they are read, the last ones: less than a millisecond."""
EVENTS_AT_ONCE = 50
"""Events handed over between two steps: of the longest texts 150 kB."""
INSTANCE = uuid4().hex
"""Tells this engine from others behind a router."""
NOT_SHOWN = {"policy", "watchers", "client_header"}
"""Settings that are not shown as they are."""


def server(scheduler: RetainingScheduler) -> dict[str, str]:
    """Say which server it is."""
    return {
        "model": str(scheduler.vllm_config.model_config.served_model_name),
        "host": socket.gethostname(),
        "version": agentkv.__version__,
        "vllm_version": vllm.__version__,
    }


def info(scheduler: RetainingScheduler) -> dict[str, Any]:
    settings = scheduler.retention.settings
    # those that only other policies take at their defaults: the keys are the same under all
    all_settings = {**default_settings(), **settings.model_dump()}
    return {
        **server(scheduler),
        "instance": INSTANCE,
        "wire_version": WIRE_VERSION,
        "policy": label_of(settings.policy),
        # the options of watchers may hold a secret; clients are nobody's news
        "settings": {key: value for key, value in all_settings.items() if key not in NOT_SHOWN},
        **scheduler.bounds(),
    }


def stats(scheduler: RetainingScheduler) -> dict[str, Any]:
    retention = scheduler.retention
    watchers, costs, learned = scheduler.watchers, retention.costs, retention.policy.learned
    unlabelled = (name for name, spec in COUNTERS.items() if not spec.label)
    counted = {**dict.fromkeys(unlabelled, 0), **watchers.counters.totals()}
    return {
        "pinned_jobs": len(retention.pins),
        "pinned_blocks": retention.pins.num_blocks,
        "live_jobs": len(retention.jobs),
        "kv_cache_usage": scheduler.usage(),
        "num_running": len(scheduler.running),
        "num_waiting": len(scheduler.queue),
        "is_under_pressure": scheduler.admission.is_memory_short,
        **{name: total for name, total in counted.items() if name != "recomputed_tokens_total"},
        "tokens": watchers.misses.total.as_dict(),
        "learned": {
            "tool_durations": learned.durations.num_observed,
            "queueing_delay_s": learned.queueing.mean_s,
            "eta": learned.memoryfulness.eta,
            "prefill_reload_s": list(astuple(costs.step_time.reload)),
            "compute_worth": costs.step_time.compute_weight,
            "load_token_s": costs.offload.load_token_s,
            "loaded_share": costs.offload.loaded_share,
            "idle_weight": scheduler.admission.idle_kv_weight,
        },
    }


def job_keys(scheduler: RetainingScheduler, viewer: str | None, start: int, most: int) -> list[str]:
    """Return `most` keys of the jobs that a client sees, the last active first."""
    own = reversed(scheduler.retention.jobs.of(viewer).values())
    return [str(job.job_id) for job in islice(own, start, start + most)]


def jobs(
    scheduler: RetainingScheduler, viewer: str | None, keys: Sequence[str]
) -> list[dict[str, Any]]:
    """Describe the jobs with these keys, as far as they are known."""
    found = map(scheduler.retention.jobs.get, keys)
    return [job_now(scheduler, job, viewer) for job in found if job is not None]


def job(
    scheduler: RetainingScheduler, job_key: str, of_anybody: bool = False
) -> dict[str, Any] | None:
    """Describe the job; if there is none, and `of_anybody`, one of another client with that id."""
    found = scheduler.retention.jobs.get(job_key)
    if found is None and of_anybody:
        named = scheduler.retention.jobs.named(JobKey.read(job_key).own_id)
        found = max(named, key=attrgetter("last_activity_s"), default=None)
    if found is None:
        return None
    turns = turns_of(scheduler, found.job_id, None if of_anybody else found.client)
    return {**job_now(scheduler, found, found.client), "last_turns": turns}


def keys_to_explain(
    scheduler: RetainingScheduler, client: str | None, job_id: str | None, worst: int
) -> list[str]:
    """Return the keys of this client's jobs, or of anybody's: of those with that id, or of the
    worst. Jobs that are over are among them."""
    misses, log = scheduler.watchers.misses, scheduler.watchers.log
    if job_id is None:
        keys = misses.worst(client, worst)
    else:
        keys = log.named(job_id) if client is None else [JobKey(client, job_id)]
    return [str(key) for key in keys if misses.knows(key)]


def explain(
    scheduler: RetainingScheduler, client: str | None, keys: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the turns of jobs, and why they missed, as this client may see them."""
    misses, log = scheduler.watchers.misses, scheduler.watchers.log
    return [
        {
            "job_id": name_of(scheduler, client, key),
            "is_id_shared": any(
                each["event"] == "id_shared" for each in log.last_of(key, MAX_READ)
            ),
            "hit_unit_tokens": scheduler.pool.hit_tokens,
            "tokens": misses.tokens_of(key),
            "turns": turns_of(scheduler, key, client),
        }
        for key in map(JobKey.read, keys)
        if misses.knows(key)
    ]


def turns_of(
    scheduler: RetainingScheduler, key: JobKey, viewer: str | None
) -> list[dict[str, Any]]:
    """Return the last admitted turns of a job, as the event log has them for this viewer."""
    last = scheduler.watchers.log.last_of(key, MAX_READ)
    events = [shown(entry, viewer) for entry in last]
    rows = [row for view in job_views(key.own_id, events) for row in view.rows()]
    return rows[-MAX_TURNS:]


def tool(
    scheduler: RetainingScheduler, job_key: str, body: dict[str, Any]
) -> dict[str, Any] | None:
    event, key = parse_tool_event(body), JobKey.read(job_key)
    is_taken = scheduler.retention.tool_signal(key, event)
    if is_taken is None:
        return None
    return {
        "job_id": key.own_id,
        "state": event.state,
        "is_pinned": scheduler.retention.pins.get(key) is not None,
        "is_ignored": not is_taken,
        "tokens": scheduler.watchers.misses.tokens_of(key),
    }


def release(scheduler: RetainingScheduler, job_key: str) -> dict[str, Any] | None:
    key = JobKey.read(job_key)
    freed_blocks = scheduler.retention.release(key)
    if freed_blocks is None:
        return None
    tokens = scheduler.watchers.misses.tokens_of(key)
    return {"job_id": key.own_id, "freed_blocks": freed_blocks, "tokens": tokens}


def events(
    scheduler: RetainingScheduler,
    viewer: str | None,
    places: Mapping[str, int | None],
    own_id: str | None = None,
) -> dict[str, Any]:
    """Return the next EVENTS_AT_ONCE of the event log, each with its job's name; `places` are the
    `next` of the page before, by engine."""
    engine = str(seam.engine_number(scheduler.vllm_config))
    found: list[tuple[JobKey, dict[str, Any]]] = []
    place = places.get(engine, 0)
    if place is not None:
        log = scheduler.watchers.log
        found, place = log.page(place, EVENTS_AT_ONCE, viewer, own_id)
    named = [(name_of(scheduler, viewer, key), entry) for key, entry in found]
    return {"engine": engine, "events": named, "next": place}


def live(
    scheduler: RetainingScheduler, viewer: str | None, seen_s: Mapping[str, float]
) -> dict[str, Any]:
    """Describe the engine at this moment to a client that watches it."""
    now = snapshot.live(scheduler, viewer, seen_s)
    return {**server(scheduler), **now, "stats": stats(scheduler)}


OPERATIONS: dict[str, Callable[..., Any]] = {
    operation.__name__: operation
    for operation in (
        *(info, stats, job_keys, jobs, job, keys_to_explain, explain, tool, release, events, live),
    )
} | {
    "clients": lambda engine: engine.admission.shares.describe(),
    "bad_tags": lambda engine, num: engine.watchers.counters.add("bad_tags_total", amount=num),
}


@seam.guarded({"error": "the operation failed; see the server's log"})
def call(scheduler: Any, op: str, args: list[Any]) -> Any:
    """Run one operation and return its answer, or {"error": message} if it failed.

    The answer is encoded once here, because one that cannot be encoded would kill the engine's only
    output thread (EngineCoreProc.process_output_sockets, vllm/v1/engine/core.py, 0.32.0).
    """
    if not isinstance(scheduler, RetainingScheduler):
        return {"error": "the server's scheduling policy is not one of agentkv's"}
    operation = OPERATIONS.get(op)
    if operation is None:
        return {"error": f"unknown operation {op!r}; known: {', '.join(OPERATIONS)}"}
    try:
        answer = operation(scheduler, *args)
        msgspec.msgpack.encode(answer)
        return answer
    except (AgentKVError, UnicodeEncodeError) as error:
        return {"error": str(error)}
