"""Sessions around each kind of client are jobs of a real vLLM server: pinned, counted, released."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import openai
import pytest
import requests

import agentkv
from agentkv.server.demo_model import MODEL_NAME
from agentkv.server.process import ServerProcess
from tests.server.chat import agentkv_get, metric, wait_for

pytestmark = pytest.mark.server

MESSAGES: Any = [{"role": "user", "content": "List the files of this folder. " * 16}]
REQUEST: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 4}


def by_anthropic_stream(root_url: str) -> None:
    with (
        anthropic.Anthropic(base_url=root_url, api_key="none") as client,
        client.messages.stream(**REQUEST) as stream,
    ):
        stream.until_done()


def by_openai(root_url: str) -> None:
    with openai.OpenAI(base_url=f"{root_url}/v1", api_key="none") as client:
        client.chat.completions.create(**REQUEST)


def by_requests(root_url: str) -> None:
    job = agentkv.current_job()
    assert job is not None
    url, headers = f"{root_url}/v1/messages", job.headers
    # without turn numbers the same prompt again is a retry
    content = f"{MESSAGES[0]['content']} It is {time.time_ns()}."
    body = {**REQUEST, "messages": [{"role": "user", "content": content}]}
    requests.post(url, json=body, headers=headers, timeout=60).raise_for_status()


@pytest.mark.parametrize("ask", [by_anthropic_stream, by_openai, by_requests])
def test_a_session_is_a_job_with_any_client(
    ask: Callable[[str], None], tiny_continuum_server: ServerProcess
) -> None:
    """Its turns are pinned, the second finds the first in the cache, and leaving frees them."""
    root_url = tiny_continuum_server.root_url
    server = agentkv.ServerAPI(root_url)
    with agentkv.session(server=root_url) as job:
        ask(root_url)
        with job.tool("ls"):
            pass
        assert agentkv.flush(timeout_s=20)
        found = server.job(job.job_id)
        assert found["turns"] == 1
        assert found["pinned_blocks"] > 0
        ask(root_url)
        assert server.job(job.job_id)["turns"] == 2
    agentkv.uninstrument()
    assert agentkv.flush(timeout_s=20)
    deadline_s = time.monotonic() + 20
    while any(live["job_id"] == job.job_id for live in server.jobs()):
        assert time.monotonic() < deadline_s
    summary = job.summary()
    assert (summary.turns, summary.failed_calls) == (0 if ask is by_requests else 2, 0)
    assert summary.hit_rate is not None
    assert summary.hit_rate > 0.5


def by_command(*words: str) -> Any:
    """The JSON of a command of ours."""
    command = [sys.executable, "-m", "agentkv.cli", *words, "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def snapshot(root_url: str) -> Any:
    """The first snapshot that the live page gets."""
    with httpx.stream("GET", f"{root_url}/v1/agentkv/live", timeout=60) as reply:
        return next(json.loads(line[6:]) for line in reply.iter_lines() if line[:6] == "data: ")


def rate(tokens: Any) -> float:
    """The hit rate of the totals that a route gives."""
    return float(tokens["later_hit_tokens"] / tokens["later_prompt_tokens"])


def test_a_job_has_one_hit_rate_everywhere(routes_server: ServerProcess) -> None:
    """The summary, `explain`, `record`, the live page, /jobs, /stats and the metrics agree."""
    root_url = routes_server.root_url
    names = [f"agentkv:{what}_tokens_total" for what in ("hit", "prompt")]
    later = [f"later_{what}_tokens" for what in ("hit", "prompt")]

    def totals() -> tuple[list[float], list[float]]:
        """Of later turns, hits and prompts so far: by the metrics, and by /stats."""
        metrics = [
            metric(routes_server, name) - metric(routes_server, name, turn="1") for name in names
        ]
        tokens = agentkv_get(routes_server, "stats")["tokens"]
        return metrics, [tokens[name] for name in later]

    before = totals()
    with (
        openai.OpenAI(base_url=f"{root_url}/v1", api_key="none") as client,
        agentkv.session(client) as job,
    ):
        content = MESSAGES[0]["content"]
        for _ in range(3):
            job.client.chat.completions.create(
                model=MODEL_NAME, max_tokens=4, messages=[{"role": "user", "content": content}]
            )
            content += " Say what each of them is for. " * 12
        live = snapshot(root_url)["engines"][0]["jobs"]
        (on_the_page,) = (rate(each["tokens"]) for each in live if each["job_id"] == job.job_id)
        by_route = rate(agentkv_get(routes_server, f"jobs/{job.job_id}")["tokens"])
    by_summary = job.summary().hit_rate
    wait_for(lambda: totals()[0][1] - before[0][1] == totals()[1][1] - before[1][1] > 0)
    deltas = [
        [now - then for now, then in zip(*each, strict=True)]
        for each in zip(totals(), before, strict=True)
    ]
    (explained,) = by_command("explain", job.job_id, "--url", root_url)["jobs"]
    (recorded,) = by_command("record", root_url, "--job", job.job_id)["jobs"]
    assert by_summary is not None
    assert 0.3 < by_summary < 1
    found = {
        "page": on_the_page,
        "/jobs": by_route,
        "explain": rate(explained["tokens"]),
        "record": recorded["hit_rate"],
        "metrics": deltas[0][0] / deltas[0][1],
        "/stats": deltas[1][0] / deltas[1][1],
    }
    assert found == dict.fromkeys(found, pytest.approx(by_summary, abs=1e-6))
