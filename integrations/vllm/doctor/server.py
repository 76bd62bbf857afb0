"""Checks of a running server over HTTP: whether it answers, has the plugin, and the plugin works.

Only reads; sends no request that generates tokens or is counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import httpx

from agentkv.policies.names import SHIPPED
from agentkv.protocol import LARGE_HIT_UNIT_TOKENS, WIRE_VERSION, Tags

from ..versions import version_problem
from .check import Check, fail, ok, warn

TIMEOUT_S = 10.0
CONNECT_S = 1.5
"""A server that takes longer to accept a connection is taken for dead."""
MIN_TURNS = 20
"""With fewer turns than this, the share of diverged turns is not judged."""
MAX_DIVERGED_SHARE = 0.2
NUM_JOBS, NUM_TURNS = 4, 3
"""A router that sends each request to either of two servers keeps all four jobs together by chance
once in 256 checks."""


def check_server(
    url: str, api_key: str | None, *, transport: httpx.BaseTransport | None = None
) -> Iterator[Check]:
    """Yield the checks of the server at `url`, with or without `/v1`; `transport` is for tests."""
    root_url = url.rstrip("/").removesuffix("/v1")
    connect = partial(
        httpx.Client,
        base_url=root_url,
        headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
        timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_S),
        transport=transport,
    )
    try:
        with connect() as client:
            yield from _check_with(client, root_url, connect)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        seen = f"{root_url} does not answer ({type(error).__name__}: {error})"
        yield fail("server", seen, "start it, or give the right --url")


def _check_with(
    client: httpx.Client, root_url: str, connect: Callable[[], httpx.Client]
) -> Iterator[Check]:
    models = client.get("/v1/models")
    if models.status_code in (401, 403):
        yield ok("server", f"{root_url} answers")
        yield fail("API key", f"HTTP {models.status_code}", "give the server's key with --api-key")
        return
    listed = _json(models).get("data") if models.is_success else None
    if not isinstance(listed, list):
        seen = f"{root_url}/v1/models: HTTP {models.status_code}, no list of models"
        yield fail("server", seen, "is this the address of an OpenAI-compatible server?")
        return
    names = ", ".join(str(model.get("id")) for model in listed)
    yield ok("server", f"{root_url} serves {names}")
    answer = client.get("/v1/agentkv/info")
    if not answer.is_success:
        yield from _without_plugin(answer)
        return
    yield from _check_info(_json(answer))
    stats = _json(client.get("/v1/agentkv/stats"))
    yield _check_log_stats(client.get("/metrics").text, stats)
    yield _check_histories(_json(client.get("/v1/agentkv/jobs")))
    yield _check_ids(stats.get("shared_ids_total", 0))
    yield _check_stickiness(connect)


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        document = answer.raise_for_status().json()
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {}


def _without_plugin(answer: httpx.Response) -> Iterator[Check]:
    if answer.status_code == 503:
        try:
            message = answer.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = f"HTTP {answer.status_code}"
        advice = "look into the server's log: its engine is stuck or dead"
        yield fail("server plugin", f"installed, but {message}", advice)
        return
    yield fail(
        "server plugin",
        f"no /v1/agentkv (HTTP {answer.status_code}): no plugin, or another scheduling policy",
        f"start it with --scheduling-policy {' or '.join(SHIPPED)} where agentkv is installed, "
        "without VLLM_USE_RUST_FRONTEND=1 and with agentkv in VLLM_PLUGINS if that is set",
    )


def _check_info(info: dict[str, Any]) -> Iterator[Check]:
    yield ok("server plugin", f"agentkv {info['version']}, policy {info['policy']}")
    theirs = info["wire_version"]
    if theirs == WIRE_VERSION:
        yield ok("wire version", f"{theirs} on both sides")
    else:
        seen = f"{theirs} on the server, {WIRE_VERSION} here"
        yield warn("wire version", seen, "install the same agentkv on both sides")
    problem = version_problem(info["vllm_version"])
    if problem is None:
        yield ok("server vllm", str(info["vllm_version"]))
    else:
        yield warn("server vllm", problem, "install a vLLM that agentkv supports")
    hit_tokens = info.get("hit_tokens", 1)
    seen = f"this model's cache hits in units of {hit_tokens} tokens"
    advice = "--prefix-match-unit 32 makes them smaller where vLLM has it: see Hybrid models"
    is_small = hit_tokens <= LARGE_HIT_UNIT_TOKENS
    yield ok("hit unit", seen) if is_small else warn("hit unit", seen, advice)


def _check_log_stats(metrics: str, stats: dict[str, Any]) -> Check:
    counted = sum(stats.get("pins_total", {}).values())
    values = re.findall(r"^agentkv:pins_total(?:\{.*\})? (\S+)", metrics, re.M)
    shown = sum(map(float, values))
    if not values or (counted > 0 and shown == 0):
        seen = f"the engine counted {counted} pins, /metrics shows {shown or 'none'}"
        return warn("log stats", seen, "remove --disable-log-stats, or read /v1/agentkv/stats")
    return ok("log stats", f"/metrics shows {shown:.0f} of {counted} pins")


def _check_histories(jobs: dict[str, Any]) -> Check:
    live = jobs.get("jobs", [])
    num_turns = sum(job.get("turns", 0) for job in live)
    num_diverged = sum(job.get("turns_diverged", 0) for job in live)
    seen = f"{num_diverged} of {num_turns} turns of live jobs do not repeat the turn before"
    if num_turns < MIN_TURNS or num_diverged <= MAX_DIVERGED_SHARE * num_turns:
        return ok("histories", seen)
    advice = (
        "the agent edits its history, or the chat template renders earlier turns differently "
        "(thinking stripped): a pin is worth only the common part"
    )
    return warn("histories", seen, advice)


def _check_ids(num_shared: int) -> Check:
    seen = f"{num_shared} have named several conversations at once"
    advice = "give each conversation an id of its own"
    return warn("job ids", seen, advice) if num_shared else ok("job ids", seen)


def _check_stickiness(connect: Callable[[], httpx.Client]) -> Check:
    """See whether each of a few jobs has one server, where a router may stand before several."""
    num_together = 0
    for _ in range(NUM_JOBS):
        headers = Tags(job_id=f"agentkv-doctor-{uuid4().hex[:12]}").as_headers()
        servers = set()
        for _ in range(NUM_TURNS):
            with connect() as client:  # a router may be sticky by connection, too
                info = _json(client.get("/v1/agentkv/info", headers=headers))
                servers.add(info.get("instance"))
        num_together += len(servers) == 1
    seen = f"{num_together} of {NUM_JOBS} jobs had all {NUM_TURNS} requests on one server"
    if num_together == NUM_JOBS:
        return ok("sticky jobs", seen)
    how_to = "make the router sticky by the header X-Session-ID: docs/how-to/several-engines.md"
    return fail("sticky jobs", seen, how_to)
