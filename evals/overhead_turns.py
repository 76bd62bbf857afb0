"""What the end of a turn costs under `context_serve`, on the engine's main thread and beside it.

On the main thread: pinning, handing the reply over, and, once it is read, the decision. Beside it:
reading the reply, predicting, and learning how long the tool took.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterator
from functools import partial

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

from .side_by_side import Row, difference_row, quartiles, timed, without_garbage_collection

NUM_TURNS = 2000
OUTPUT = list(range(400))
"""Tokens of a reply."""
NUM_BLOCKS, BLOCK_TOKENS = 10_000, 16
TARGET_MS = 0.1
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


def measure(seed: int) -> Iterator[Row]:
    """Rows for what a turn's end costs more than under `continuum`, and for the side work."""
    chance = random.Random(seed)
    commands = [
        chance.choice(COMMANDS).format(f"part{chance.randrange(60)}", chance.randrange(20))
        for _ in range(NUM_TURNS)
    ]
    with without_garbage_collection():
        yield from _measure(commands, chance)


def _measure(commands: list[str], chance: random.Random) -> Iterator[Row]:
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
    yield difference_row(name, bare_s, ours_s, target_ms=TARGET_MS)
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
