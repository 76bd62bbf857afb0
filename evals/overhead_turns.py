"""What the end of a turn costs the engine's main thread under `context_serve`.

Timed per turn: pinning, handing the reply over to the reading thread, and, once it is read, the
prediction and the decision. The reading itself is done beforehand, as the thread would.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import partial

from agentkv.integrations.vllm.context_serve import read_part
from agentkv.integrations.vllm.jobs import Context
from agentkv.integrations.vllm.reply_reader import MAX_REPLY_TOKENS, Reply
from agentkv.integrations.vllm.retention import Retention
from agentkv.integrations.vllm.settings import Settings
from agentkv.integrations.vllm.side_work import SideWork
from agentkv.wire import Tags

from .side_by_side import Row, difference_row, quartiles, timed, without_garbage_collection

NUM_TURNS = 2000
OUTPUT = list(range(400))
"""Tokens of a reply."""
TARGET_MS = 0.5
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
    """A row for what a turn's end costs more than under `continuum`, one for learning."""
    chance = random.Random(seed)
    commands = [
        chance.choice(COMMANDS).format(f"part{chance.randrange(60)}", chance.randrange(20))
        for _ in range(NUM_TURNS)
    ]
    with without_garbage_collection():
        yield from _measure(commands, chance)


def _measure(commands: list[str], chance: random.Random) -> Iterator[Row]:
    bare, ours = _retention("continuum"), _retention("context_serve")
    queue = SideWork(lambda task: None)
    bare_s: list[float] = []
    ours_s: list[float] = []
    learning_s: list[float] = []
    for number, command in enumerate(commands):
        turns = [_arrive(retention, number) for retention in (bare, ours)]
        read = read_part(command)
        bare_s.append(timed(partial(_end, bare, turns[0]))[0])
        ours_s.append(timed(partial(_end_and_decide, ours, turns[1], queue, read))[0])
        duration_s = chance.lognormvariate(0.0, 1.5)
        learning_s.append(timed(partial(ours.policy.observe, None, read, duration_s))[0])
    yield difference_row(
        "decision: a turn's end under context_serve, to continuum's",
        bare_s,
        ours_s,
        target_ms=TARGET_MS,
    )
    low, median, high = (second * 1e3 for second in quartiles(learning_s))
    name = "decision: learning one duration"
    yield Row(name, median, "ms", low, high, len(learning_s), TARGET_MS)


def _end_and_decide(retention: Retention, request_id: str, queue: SideWork, read: str) -> None:
    _end(retention, request_id)
    reply = Reply(request_id, OUTPUT[-MAX_REPLY_TOKENS:])
    queue.run(partial(_pass, reply))
    retention.reply_read(request_id, read)


def _pass(reply: Reply) -> None:
    """Reading is not what is measured."""


def _retention(policy: str) -> Retention:
    seconds = itertools.count()
    return Retention(
        Settings.model_validate({"policy": policy}),
        clock=lambda: next(seconds) * 1e-3,
        free=lambda pin: None,
        on_rank_change=lambda job_id: None,
        on_deadline=lambda deadline_s: None,
    )


def _arrive(retention: Retention, number: int) -> str:
    request_id = f"turn{number}"
    retention.turn_arrived(
        request_id,
        Tags(job_id=f"job{number}"),
        num_prompt_tokens=320,
        block_hashes=[bytes([index]) for index in range(20)],
        block_tokens=16,
    )
    retention.turn_admitted(request_id, hit_tokens=0)
    return request_id


def _end(retention: Retention, request_id: str) -> None:
    retention.should_pin(request_id, is_finished_turn=True)
    retention.turn_ended(
        request_id,
        is_finished_turn=True,
        context=Context([bytes([index]) for index in range(20)], 20, 16),
        blocks=[object()],
    )
