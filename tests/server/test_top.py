"""`agentkv top` on a real server's stream."""

from __future__ import annotations

import asyncio

import pytest

from agentkv.evals.top import LiveFeed, ShownJob, Top
from agentkv.server.process import ServerProcess
from tests.server.chat import WORDS, agentkv_get, chat

pytestmark = pytest.mark.server


@pytest.mark.asyncio
async def test_the_jobs_of_a_server_are_on_the_screen(tiny_continuum_server: ServerProcess) -> None:
    """A job shows with its turns, its context and what happened to it."""
    server = tiny_continuum_server
    app = Top(LiveFeed(server.base_url, None))
    async with app.run_test(size=(80, 24)) as pilot, asyncio.timeout(60.0):
        for turn in (1, 2):
            await asyncio.to_thread(chat, server, WORDS, job_id="watched", turn=turn)
        key = ShownJob(0, "watched")
        while app.board.jobs.get(key, {}).get("turn") != 2:
            await pilot.pause(0.1)
        shown = app.board.jobs[key]
        events = [event["event"] for event in app.board.events.get(key)]
        assert key in app._shown
    described = agentkv_get(server, "jobs/watched")
    assert shown["tokens"] == described["context_tokens"] or shown["state"] == "running"
    of_turns = [event for event in events if event in ("arrival", "waiting_to_running", "finish")]
    assert of_turns[:3] == ["arrival", "waiting_to_running", "finish"]
