"""Plays a few short jobs through a URL, and sees whether each stays on one server.

Behind the URL may be a router. Every request has a connection of its own and carries the headers
that agentkv's client sends, so what holds here holds for agents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from uuid import uuid4

import httpx

from agentkv.protocol import SESSION_HEADER, Tags

from .check import Check, fail, ok, warn
from .server import connect

NUM_JOBS, NUM_TURNS = 4, 3
"""A router that sends each request to either of two servers keeps all four jobs together by chance
once in 256 checks."""
NUM_QUESTIONS = 8
TIMEOUT_S = 30.0
"""For one turn of one token, which may wait behind others."""

HOW_TO = "make the router sticky by the header X-Session-ID: docs/how-to/several-engines.md"

Connect = Callable[[], AbstractContextManager[httpx.Client]]


def check_stickiness(
    url: str, api_key: str | None, *, transport: httpx.BaseTransport | None = None
) -> Iterator[Check]:
    """Yield the checks of jobs through `url`, a server with the plugin or a router before some."""
    try:
        yield from _check_jobs(partial(connect, url, api_key, TIMEOUT_S, transport))
    except (httpx.HTTPError, ValueError, LookupError) as error:
        seen = f"a turn of one token got no answer ({type(error).__name__}: {error})"
        yield warn("sticky turns", seen, "try again when the server has room for a new job")


def _check_jobs(connect: Connect) -> Iterator[Check]:
    with connect() as client:
        model = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
    num_together, num_unknown, num_unreleased = 0, 0, 0
    for _ in range(NUM_JOBS):
        job_id = f"agentkv-doctor-{uuid4().hex[:12]}"
        for turn in range(1, NUM_TURNS + 1):
            _play_turn(connect, model, job_id, turn)
        num_turns = _num_turns_on_a_server(connect, job_id)
        num_unknown += num_turns is None
        num_together += num_turns == NUM_TURNS
        with connect() as client:
            path = f"/v1/agentkv/jobs/{job_id}/release"
            answer = client.post(path, headers={SESSION_HEADER: job_id}, json={})
        num_unreleased += answer.status_code == 404
    seen = f"{num_together} of {NUM_JOBS} short jobs had all {NUM_TURNS} turns on one server"
    if num_together == NUM_JOBS:
        yield ok("sticky turns", seen)
    elif num_unknown == NUM_JOBS:
        seen = f"{NUM_JOBS} of {NUM_JOBS} short jobs are unknown where questions about them go"
        yield fail("sticky turns", seen, f"pass /v1/agentkv on, and {HOW_TO}")
    else:
        yield fail("sticky turns", seen, HOW_TO)
    seen = f"{NUM_JOBS - num_unreleased} of {NUM_JOBS} releases reached the job's server"
    if num_unreleased:
        yield fail("sticky feedback", seen, HOW_TO)
    else:
        yield ok("sticky feedback", seen)


def _num_turns_on_a_server(connect: Connect, job_id: str) -> int | None:
    """The turns of the job on a server that knows it; None if no answer came from such a server.

    Some routers send a request without a body to any server, so it is made several times.
    """
    for _ in range(NUM_QUESTIONS):
        with connect() as client:
            answer = client.get(f"/v1/agentkv/jobs/{job_id}", headers={SESSION_HEADER: job_id})
        if answer.status_code != 404:
            return int(answer.raise_for_status().json()["turns"])
    return None


def _play_turn(connect: Connect, model: str, job_id: str, turn: int) -> None:
    tags = Tags(job_id=job_id, turn=turn)
    body = {"model": model, "prompt": "agentkv doctor. " * turn, "max_tokens": 1}
    with connect() as client:
        answer = client.post("/v1/completions", json=body, headers=tags.as_headers())
        answer.raise_for_status()
