"""What the plugin's middleware costs a request of 10 kB that carries none of our fields."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import deque
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentkv.integrations.vllm.api.middleware import AgentKVMiddleware
from agentkv.integrations.vllm.policy.jobs import Context
from agentkv.integrations.vllm.retention.manager import Retention
from agentkv.integrations.vllm.retention.predictor import (
    MAX_REPLY_TOKENS,
    Reply,
    SideWork,
    Task,
)
from agentkv.integrations.vllm.settings import Settings
from agentkv.protocol import Tags, ToolEvent

from .side_by_side import (
    Row,
    difference_row,
    quartiles,
    timed,
    timed_async,
    without_garbage_collection,
)

BODY_BYTES = 10_000
NUM_REQUESTS = 2000
TARGET_MS = 0.1


def measure_middleware() -> Row:
    """The middleware in front of an application, against the application alone."""
    return asyncio.run(_time_requests())


async def _time_requests() -> Row:
    app = Starlette()
    app.state.vllm_config = SimpleNamespace(additional_config={"agentkv": {"policy": "continuum"}})
    app.state.engine_client = SimpleNamespace(engine_core=None)  # never asked: no field of ours
    middleware = AgentKVMiddleware(_read_body)
    body = _body()
    bare_s: list[float] = []
    ours_s: list[float] = []
    with without_garbage_collection():
        for index in range(NUM_REQUESTS + 1):
            bare = await timed_async(lambda: _request(_read_body, app, body))
            ours = await timed_async(lambda: _request(middleware, app, body))
            if index:  # the first call sets the middleware up
                bare_s.append(bare)
                ours_s.append(ours)
    name = f"middleware, {len(body) / 1000:.0f} kB without our fields"
    return difference_row(name, bare_s, ours_s, target_ms=TARGET_MS)


def _body() -> bytes:
    request = {"model": "m", "messages": [{"role": "user", "content": ""}], "max_tokens": 16}
    padding = BODY_BYTES - len(json.dumps(request))
    request["messages"] = [{"role": "user", "content": "x" * padding}]
    return json.dumps(request).encode()


async def _request(app: ASGIApp, state: Starlette, body: bytes) -> None:
    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"user-agent", b"agent/1.0")],
        "app": state,
    }
    messages: list[Message] = [
        {"type": "http.disconnect"},
        {"type": "http.request", "body": body, "more_body": False},
    ]

    async def receive() -> Message:
        return messages.pop()

    await app(scope, receive, _send)


async def _send(message: Message) -> None:
    return None


async def _read_body(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that reads the request and answers with an empty body."""
    message = await receive()
    assert len(message["body"]) == BODY_BYTES
    assert not message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


NUM_TURNS = 2000
OUTPUT = list(range(400))
"""Tokens of a reply."""
NUM_BLOCKS, BLOCK_TOKENS = 10_000, 16
TURN_TARGET_MS = 0.1
THOUGHTS = "I will look at the file first, since the test names it.\n" * 14
COMMANDS = (
    "ls -la src/{0}",
    "cat src/{0}/module.py | head -{1}",
    "cd /testbed && python -m pytest -q tests/test_{0}.py -k case_{1}",
    "grep -rn 'def {0}' --include=*.py . | sort | uniq -c",
    "git status && git diff HEAD~{1} -- src/{0}",
    "pip install -e '.[{0}]'",
    "python -c 'import {0}; print({0}.__version__)'",
    "make -j{1} {0}",
    "frobnicate --all {0}",
    "sed -i 's/{0}/{1}/g' src/*.py && python {0}.py > out.txt 2>&1",
)


def measure_turns(seed: int) -> Iterator[Row]:
    """Rows for what a turn's end costs more than under `continuum`, and for the side work."""
    chance = random.Random(seed)
    commands = [
        chance.choice(COMMANDS).format(f"part{chance.randrange(60)}", chance.randrange(20))
        for _ in range(NUM_TURNS)
    ]
    with without_garbage_collection():
        yield from _time_turns(commands, chance)


def _time_turns(commands: list[str], chance: random.Random) -> Iterator[Row]:
    held: deque[Task] = deque()
    bare, ours = _retention("continuum"), _retention("context_serve", SideWork(held.append))
    bare_s: list[float] = []
    ours_s: list[float] = []
    reading_s: list[float] = []
    learning_s: list[float] = []
    for number, command in enumerate(commands):
        turns = [_arrive(retention, number) for retention in (bare, ours)]
        reply = f"{THOUGHTS}```bash\n{command}\n```"
        told = ToolEvent("finished", command=command, duration_s=chance.lognormvariate(0.0, 1.5))
        told_s = timed(partial(bare.tool_signal, f"job{number}", told))[0]
        bare_s.append(timed(partial(_end, bare, turns[0]))[0] + told_s)
        hand_over_s = timed(partial(_end_and_ask, ours, turns[1], reply))[0]
        reading_s.append(timed(partial(_do, held))[0])
        decide_s = timed(ours.do_what_is_due)[0]
        told_s = timed(partial(ours.tool_signal, f"job{number}", told))[0]
        ours_s.append(hand_over_s + decide_s + told_s)
        learning_s.append(timed(partial(_do, held))[0])
    name = "decision: a turn's end and its tool's, to continuum's"
    yield difference_row(name, bare_s, ours_s, target_ms=TURN_TARGET_MS)
    yield _row("decision: reading a reply and predicting, in the thread", reading_s)
    yield _row("decision: learning one duration, in the thread", learning_s)


def _row(name: str, times_s: list[float]) -> Row:
    low, median, high = (time_s * 1e3 for time_s in quartiles(times_s))
    return Row(name, median, "ms", low, high, len(times_s))


def _end_and_ask(retention: Retention, request_id: str, reply: str) -> None:
    _end(retention, request_id)
    tokens = OUTPUT[-MAX_REPLY_TOKENS:]
    retention.read(Reply(request_id, tokens), lambda token_ids: reply)


def _do(held: deque[Task]) -> None:
    while held:
        held.popleft()()


def _retention(policy: str, side_work: SideWork | None = None) -> Retention:
    seconds = itertools.count()
    return Retention(
        Settings.model_validate({"policy": policy}),
        num_blocks=NUM_BLOCKS,
        block_tokens=BLOCK_TOKENS,
        clock=lambda: next(seconds) * 1e-3,
        free=lambda blocks, fence: None,
        on_rank_change=lambda job_id: None,
        on_deadline=lambda deadline_s: None,
        side_work=side_work,
    )


def _arrive(retention: Retention, number: int) -> str:
    request_id = f"turn{number}"
    retention.turn_arrived(
        request_id,
        Tags(job_id=f"job{number}"),
        num_prompt_tokens=20 * BLOCK_TOKENS,
        block_hashes=[bytes([index]) for index in range(20)],
    )
    retention.turn_admitted(request_id, hit_tokens=0)
    return request_id


def _end(retention: Retention, request_id: str) -> None:
    retention.should_pin(request_id, is_finished_turn=True)
    retention.turn_ended(
        request_id,
        is_finished_turn=True,
        context=Context([bytes([index]) for index in range(20)], 20, BLOCK_TOKENS),
        blocks=[object()],
    )
