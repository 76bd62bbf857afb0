"""Sends the requests of a few short jobs through a URL, and sees whether each job has one server.

Behind the URL may be a router. Every request has a connection of its own and carries the headers
that agentkv's client sends, so what holds here holds for agents. A server's middleware answers
these requests itself: no engine computes, counts or learns anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from uuid import uuid4

import httpx

from agentkv.protocol import PROBE_ANSWER, PROBE_HEADER, Tags

from .check import Check, fail, ok, warn
from .server import connect

NUM_JOBS, NUM_TURNS = 4, 3
"""A router that sends each request to either of two servers keeps all four jobs together by chance
once in 256 checks."""
TIMEOUT_S = 30.0

HOW_TO = "make the router sticky by the header X-Session-ID: docs/how-to/several-engines.md"

Connect = Callable[[], AbstractContextManager[httpx.Client]]


def check_stickiness(
    url: str, api_key: str | None, *, transport: httpx.BaseTransport | None = None
) -> Iterator[Check]:
    """Yield the checks of jobs through `url`, a server with the plugin or a router before some."""
    try:
        yield from _check_jobs(partial(connect, url, api_key, TIMEOUT_S, transport))
    except (httpx.HTTPError, ValueError, LookupError) as error:
        seen = f"a request got no answer ({type(error).__name__}: {error})"
        yield warn("sticky turns", seen, "look into the router's and the server's log")


def _check_jobs(connect: Connect) -> Iterator[Check]:
    with connect() as client:
        model = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
    num_together, num_reached, num_silent, num_lost = 0, 0, 0, 0
    for _ in range(NUM_JOBS):
        job_id = f"agentkv-doctor-{uuid4().hex[:12]}"
        body = {"model": model, "prompt": "agentkv doctor", "max_tokens": 1}
        servers = {_server_of(connect, "/v1/completions", job_id, body) for _ in range(NUM_TURNS)}
        told = _server_of(connect, f"/v1/agentkv/jobs/{job_id}/release", job_id, {})
        num_silent += None in servers
        num_together += len(servers) == 1
        num_lost += told is None
        num_reached += told in servers
    if num_silent:
        seen = f"{num_silent} of {NUM_JOBS} short jobs had turns whose server is not known"
        yield warn("sticky turns", seen, f"pass the headers X-AgentKV-* on, and {HOW_TO}")
        return
    seen = f"{num_together} of {NUM_JOBS} short jobs had all {NUM_TURNS} turns on one server"
    yield _check("sticky turns", seen, HOW_TO, num_together)
    seen = f"{num_reached} of {NUM_JOBS} releases reached the job's server"
    how_to = f"pass /v1/agentkv on, and {HOW_TO}" if num_lost else HOW_TO
    yield _check("sticky feedback", seen, how_to, num_reached)


def _check(name: str, seen: str, how_to: str, num_good: int) -> Check:
    return ok(name, seen) if num_good == NUM_JOBS else fail(name, seen, how_to)


def _server_of(connect: Connect, path: str, job_id: str, body: dict[str, Any]) -> str | None:
    """Which server a request of the job reaches; None if none with the plugin says so."""
    headers = {**Tags(job_id=job_id).as_headers(), PROBE_HEADER: "1"}
    with connect() as client:
        answer = client.post(path, json=body, headers=headers)
    if answer.status_code != 404:
        name = answer.raise_for_status().json().get("id")
        if isinstance(name, str) and name.startswith(PROBE_ANSWER):
            return name
    return None
