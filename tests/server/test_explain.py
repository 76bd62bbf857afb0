"""`agentkv explain` on a real server: planted reasons why a turn misses are named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentkv.server.process import ServerProcess
from tests.conftest import DEMO_ARGS, ServerPool
from tests.server.chat import agentkv_get, chat, wait_for

pytestmark = [pytest.mark.server, pytest.mark.long]

TTL_S = 8.0
SETTINGS = {"ttl": "fixed", "fixed_ttl_s": TTL_S, "rules": "released", "show_prompts": True}
SMALL_POOL = (
    *("--num-gpu-blocks-override", "64", "--max-model-len", "1984"),
    *("--max-num-batched-tokens", "2048"),
)
SYSTEM = "You are an agent. Today is {date}. " + "Use the tools, one call at a time. " * 10
TASK = "Find out why the tests of this project fail. " * 12
MORE = "This is what the tool printed: " + " ".join(f"line{number}" for number in range(40))


@pytest.fixture
def server(server_pool: ServerPool, demo_model_dir: Path) -> ServerProcess:
    """The demo model with 63 blocks of 32 tokens; pins last 8 s, and prompts may be shown."""
    config = ("--additional-config", json.dumps({"agentkv": SETTINGS}))
    return server_pool.get(demo_model_dir, *DEMO_ARGS, *SMALL_POOL, *config)


def system(date: str = "Monday") -> dict[str, str]:
    return {"role": "system", "content": SYSTEM.format(date=date)}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def fill(server: ServerProcess, **tags: Any) -> None:
    """A request that takes nearly all blocks."""
    words = " ".join(f"{number:04}" for number in range(345))
    chat(server, words, model="demo", max_tokens=1, **tags)


def release(server: ServerProcess, job_id: str) -> None:
    reply = httpx.post(f"{server.base_url}/agentkv/jobs/{job_id}/release", timeout=60.0)
    assert reply.status_code == 200


def explained(server: ServerProcess, *arguments: str) -> Any:
    """The JSON of `agentkv explain`."""
    command = [sys.executable, "-m", "agentkv.cli", "explain", *arguments, "--json"]
    done = subprocess.run(
        [*command, "--url", server.root_url], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)["jobs"]


def play(server: ServerProcess, case: str) -> None:
    """Two turns of a job, of which the second misses for this reason."""
    first, body = [system(), user(TASK)], {"model": "demo", "job_id": case, "max_tokens": 96}
    answer = chat(server, "", messages=first, **body)["choices"][0]["message"]["content"]
    if case == "pressure":
        fill(server, job_id="the-taker")
    elif case == "ttl":
        wait_for(lambda: agentkv_get(server, f"jobs/{case}")["pinned_blocks"] == 0)
        fill(server)
    now = system("Tuesday") if case == "date" else system()
    chat(server, "", messages=[now, user(TASK), assistant(answer), user(MORE)], **body)
    release(server, case)


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "date": ({"reason": "diverged", "kind": "start", "change": "edited"}, "such as a date"),
    "pressure": ({"reason": "pressure", "taken_by": "the-taker"}, "went to job the-taker"),
    "ttl": ({"reason": "ttl", "ttl_s": TTL_S, "ended_by": "expired"}, "TTL of 8.0 s over"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_planted_reason_is_named(server: ServerProcess, case: str) -> None:
    """Each planted reason is found, in a fact that a program can read and in a sentence, with
    something to do about it, and after the job's end. All reasons: the tests of `why`."""
    play(server, case)
    (job,) = explained(server, case)
    miss = job["turns"][-1]["miss"]
    facts, words = CASES[case]
    assert {name: miss.get(name) for name in facts} == facts
    assert words in miss["why"]
    assert miss["advice"]
    lost = job["tokens"]["recomputed_tokens"][miss["reason"]]
    assert lost == miss["tokens"] > 0
    if case == "date":
        texts = (miss["text_before"], miss["text_was"], miss["text_now"])
        assert [text.split()[0 if place else -1] for place, text in enumerate(texts)] == [
            *("is", "Monday.", "Tuesday.")
        ]
