"""Small calls on a real server, shared by the tests of this folder."""

import re
import time
from collections.abc import Callable
from typing import Any

import httpx

from agentkv.server.process import ServerProcess

LIMIT_S = 120.0
"""How long a test waits for something that must come; never the thing under test."""

WORDS = " ".join(f"word{number}" for number in range(60))


def chat(server: ServerProcess, text: str, *, model: str = "tiny", **body: Any) -> dict[str, Any]:
    """One greedy chat completion of 8 tokens; `body` adds to or overrides the request."""
    request = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
        **body,
    }
    reply = httpx.post(f"{server.base_url}/chat/completions", json=request, timeout=LIMIT_S)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def agentkv_get(server: ServerProcess, route: str) -> dict[str, Any]:
    reply = httpx.get(f"{server.base_url}/agentkv/{route}", timeout=LIMIT_S)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def metric(server: ServerProcess, name: str, **labels: str) -> float:
    """The sum of a series over its other labels, as `/metrics` shows it now."""
    text = httpx.get(f"{server.root_url}/metrics", timeout=LIMIT_S).text
    series = re.findall(rf"^{re.escape(name)}({{.*}})? (\S+)$", text, flags=re.MULTILINE)
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(float(value) for found, value in series if all(pair in found for pair in wanted))


def wait_for(condition: Callable[[], bool]) -> None:
    """Poll until the condition holds; fails after LIMIT_S."""
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "it never came true"
        time.sleep(0.05)
