"""The agentkv policy in a real vLLM server with little memory.

With the demo model: the tiny one is so fast that while it streams, vLLM's API server, also under
fcfs, leaves new connections waiting for up to half a minute.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from agentkv.server.process import ServerProcess
from tests.conftest import PRICE_S
from tests.server.chat import LIMIT_S, WORDS, agentkv_get, chat, metric, wait_for

pytestmark = pytest.mark.server

LONG = " ".join([WORDS] * 9)
"""With the turns to come two jobs that begin like this do not fit."""


def events_of(server: ServerProcess, job_id: str, name: str) -> list[dict[str, Any]]:
    events = agentkv_get(server, "timestamps")["jobs"].get(job_id, [])
    return [event for event in events if event["event"] == name]


def test_a_job_that_is_not_expected_to_fit_is_held_back_and_shown(
    demo_server: ServerProcess,
) -> None:
    """Routes, record and metrics say so; it ends all the same, and the server goes on."""
    server = demo_server
    holds = metric(server, "agentkv:holds_total")
    endless = {"max_tokens": 3900, "ignore_eos": True, "stream": True}
    first = {"model": "demo", "prompt": LONG, "job_id": "first", **endless}
    url = f"{server.base_url}/completions"
    with ThreadPoolExecutor() as pool:
        with httpx.stream("POST", url, json=first, timeout=LIMIT_S) as reply:
            lines = reply.iter_lines()
            next(lines)
            second = pool.submit(chat, server, LONG, model="demo", job_id="second")
            wait_for(lambda: bool(events_of(server, "second", "held")))
            assert agentkv_get(server, "jobs/second")["held_back"]
        assert second.result()["usage"]["completion_tokens"] == 8
    (held,) = events_of(server, "second", "held")
    assert "blocks expected at the peak" in held["reason"]
    assert not events_of(server, "first", "held")
    assert not agentkv_get(server, "jobs/second")["held_back"]
    assert agentkv_get(server, "stats")["is_under_pressure"]
    wait_for(lambda: metric(server, "agentkv:holds_total") == holds + 1)
    for job_id in ("first", "second"):
        chat(server, WORDS, model="demo", job_id=job_id, is_last_step=True)
    wait_for(lambda: metric(server, "agentkv:pinned_jobs") == 0)


@pytest.mark.parametrize(
    ("command", "key", "is_held"),
    [("ls -la", "ls", True), ("pip install torch", "pip install", False)],
)
def test_a_context_is_held_by_the_price_of_the_tool(
    demo_server: ServerProcess, command: str, key: str, is_held: bool
) -> None:
    """Read from the reply, which guided decoding makes the model say."""
    server = demo_server
    job_id = command.split()[0]
    choice = {"choice": [f"```bash\n{command}\n```"]}
    chat(
        server,
        WORDS,
        model="demo",
        job_id=job_id,
        max_tokens=64,
        ignore_eos=False,
        structured_outputs=choice,
    )
    wait_for(lambda: bool(events_of(server, job_id, "decision")))
    (decision,) = events_of(server, job_id, "decision")
    assert decision["command"] == key
    assert (decision["ttl_s"] > 0) == is_held
    assert f"coming back is worth {PRICE_S:.2f} s of holding" in decision["reason"]
    chat(server, WORDS, model="demo", job_id=job_id, is_last_step=True)
