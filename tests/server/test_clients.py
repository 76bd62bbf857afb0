"""Sessions around each kind of client are jobs of a real vLLM server: pinned, counted, released."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import openai
import pytest
import requests

import agentkv
from agentkv.server.process import ServerProcess

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:litellm"),
]

MESSAGES: Any = [{"role": "user", "content": "List the files of this folder. " * 16}]
REQUEST: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 4}
STREAM = {**REQUEST, "stream": True, "stream_options": {"include_usage": True}}


def by_anthropic(root_url: str) -> None:
    with anthropic.Anthropic(base_url=root_url, api_key="none") as client:
        client.messages.create(**REQUEST)


def by_anthropic_stream(root_url: str) -> None:
    with (
        anthropic.Anthropic(base_url=root_url, api_key="none") as client,
        client.messages.stream(**REQUEST) as stream,
    ):
        stream.until_done()


def by_openai(root_url: str) -> None:
    with openai.OpenAI(base_url=f"{root_url}/v1", api_key="none") as client:
        client.chat.completions.create(**REQUEST)


def by_litellm(root_url: str) -> None:
    litellm = importlib.import_module("litellm")  # slow, and used here alone
    options = {"model": "hosted_vllm/tiny", "api_base": f"{root_url}/v1", "max_tokens": 4}
    litellm.completion(**options, messages=MESSAGES)


def by_httpx_stream(root_url: str) -> None:
    with httpx.stream("POST", f"{root_url}/v1/chat/completions", json=STREAM, timeout=60) as reply:
        list(reply.iter_lines())


def by_requests(root_url: str) -> None:
    job = agentkv.current_job()
    assert job is not None
    url, headers = f"{root_url}/v1/messages", job.headers
    requests.post(url, json=REQUEST, headers=headers, timeout=60).raise_for_status()


@pytest.mark.parametrize(
    "ask",
    [by_anthropic, by_anthropic_stream, by_openai, by_litellm, by_httpx_stream, by_requests],
)
def test_a_session_is_a_job_with_any_client(
    ask: Callable[[str], None],
    tiny_continuum_server: ServerProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its turns are pinned, the second finds the first in the cache, and leaving frees them."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or its import asks the network
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
    assert summary.hit_tokens is not None
    assert summary.prompt_tokens is not None
    assert 0 < summary.hit_tokens < summary.prompt_tokens
    assert summary.hit_rate is not None
    assert summary.hit_rate > 0.5
