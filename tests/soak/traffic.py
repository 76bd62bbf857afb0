"""Plays random jobs on a server: `python -m tests.soak.traffic BASE_URL POLICY SEED KEY`.

One process is one client. Jobs go on from turn to turn with tools between, some as sub-agents of
another; replies are streamed or not, dropped half-way, or not waited for. Now and then the client
signals and releases jobs that it does not have, and sends tags that the server refuses.
"""

import itertools
import random
import sys
import time
from contextlib import suppress
from typing import Any

import httpx
import openai

import agentkv
from agentkv.protocol import WIRE_FIELD

COMMANDS = ("ls -la", "make test", "pip install torch", "frobnicate --all", "sleep 1", "")
KEYS = ("soak-a", "soak-b", "soak-c")
WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")
MAX_CONTEXT_WORDS = 600
BAD_TAGS = ({"job_id": 5}, {"job_id": "x", "turn": -1}, {"job_id": "x", "last_tool_s": "soon"})


def play_forever(base_url: str, policy: str, seed: int, key: str) -> None:
    dice = random.Random(seed)
    # vLLM closes a connection idle for 5 s, httpx's own limit: one in 360 calls then met its end
    kept = openai.DefaultHttpxClient(limits=httpx.Limits(keepalive_expiry=2.0))
    asked: Any = {"max_retries": 0, "timeout": 600.0, "http_client": kept}
    client = openai.OpenAI(base_url=base_url, api_key=key, **asked)
    parent_job_id = None
    for number in itertools.count():
        job_id = f"soak-{seed}-{number}" if dice.random() < 0.7 else f"shared-{dice.randrange(9)}"
        expected_turns = dice.choice((None, 3, 1000))
        with agentkv.session(
            client, job_id=job_id, parent_job_id=parent_job_id, expected_turns=expected_turns
        ) as job:
            play_job(dice, client, job, policy)
        parent_job_id = dice.choice((None, None, job_id))
        if policy != "fcfs" and dice.random() < 0.2:
            disturb(dice, base_url, key)


def play_job(
    dice: random.Random, client: openai.OpenAI, job: agentkv.Job[Any], policy: str
) -> None:
    """One job of 1 to 6 turns; a fifth ask for several samples, whose KV goes its own ways."""
    words = dice.choices(WORDS, k=dice.randrange(20, MAX_CONTEXT_WORDS // 2))
    extra = {"ignore_eos": True, **dice.choice(({}, {}, {"cache_salt": "s"}))}
    if policy != "fcfs":
        extra["priority"] = dice.choice((0, 0, 5))
    for _ in range(dice.randrange(1, 7)):
        request = {
            "model": "tiny",
            "messages": [{"role": "user", "content": " ".join(words)}],
            "max_tokens": dice.randrange(1, 80),
            "n": dice.choice((1, 1, 1, 1, 1, 1, 2, 8)),
            "extra_body": extra,
        }
        ask(dice, client, request)
        with job.tool(dice.choice(COMMANDS) or "lookup"):
            time.sleep(dice.expovariate(4.0))
        words += dice.choices(WORDS, k=dice.randrange(5, 60))
        if len(words) > MAX_CONTEXT_WORDS:
            return


def ask(dice: random.Random, client: openai.OpenAI, request: dict[str, Any]) -> None:
    """One turn: read, streamed to the end, dropped half-way, or given up before it comes."""
    completions: Any = client.chat.completions
    kind = dice.choice(("whole", "whole", "stream", "stream", "drop", "give up"))
    if kind == "whole":
        completions.create(**request)
    elif kind == "give up":
        with suppress(openai.APITimeoutError):
            completions.create(**request, timeout=dice.uniform(0.01, 0.5))
    else:
        with completions.create(**request, stream=True) as chunks:
            limit = dice.randrange(1, 10) if kind == "drop" else None
            for _ in itertools.islice(chunks, limit):
                pass


def disturb(dice: random.Random, base_url: str, key: str) -> None:
    """Signals for unknown jobs and refused tags; raises AssertionError for another answer.

    In the middle of a long step a signal is accepted unread.
    """
    event = {"state": dice.choice(("started", "finished")), "command": "ls " + "x" * 3000}
    asked: Any = {"headers": {"Authorization": f"Bearer {key}"}, "timeout": 600}
    jobs = f"{base_url}/agentkv/jobs"
    signalled = httpx.post(f"{jobs}/nobody/tool", json=event, **asked)
    assert signalled.status_code in (202, 404), signalled.text
    for what, body in (("tool", event), ("release", {})):  # of a job that another may play now
        found = httpx.post(f"{jobs}/shared-{dice.randrange(9)}/{what}", json=body, **asked)
        assert found.status_code in (200, 202, 404), found.text
    request = {"model": "tiny", "prompt": "hello", "max_tokens": 1, WIRE_FIELD: 1}
    request |= dice.choice(BAD_TAGS)
    refused = httpx.post(f"{base_url}/completions", json=request, **asked)
    assert refused.status_code == 400, refused.text


if __name__ == "__main__":
    play_forever(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
