"""What one scheduling step costs with 200 running, 1,000 waiting and 300 pinned jobs, to stock's.

Both engines get the same requests and must schedule the same batches, checked step by step. Five
situations: the batch is full, the head of the queue does not fit, the head would fit and is held
back, turns end and start in each step, running turns grow into what is pinned.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np

from agentkv.evals.simulator.vllm_scheduler import (
    SchedulerShape,
    build_scheduler,
    make_request,
    runner_output,
    sha256_hasher,
)
from agentkv.policies.agentkv import AgentKVPolicy
from agentkv.policies.base import AdmissionRequest

from .rows import Row, ratio_row, timed, without_garbage_collection

NUM_RUNNING, NUM_WAITING, NUM_PINNED = 200, 1000, 300
ROUNDS, STEPS_PER_ROUND = 20, 10
TARGET_RATIO = 1.15
DECIDING_TARGET_RATIO = 1.25
"""Where turns end under a policy that predicts: 14 us for each decision, and the replies are read
while no model runs that would leave the interpreter to the thread that reads them."""
POLICIES = ("continuum", "context_serve", "agentkv")
ENDLESS_TOKENS = 3000
REPLY = "I will look at the file first, since the test names it.\n" * 14 + (
    "```bash\ncd /testbed && frobnicate --all src/module.py | head -50\n```"
)
"""What every reply reads as, 900 characters; what it runs is unknown, so every rule is asked."""


@dataclass(frozen=True, slots=True)
class Situation:
    """One state of the engine; with blocks of 512 tokens running turns need no further one."""

    name: str
    rules: str = "paper"
    num_ending: int = 0
    """Turns that end, and so start, in each step."""
    num_spare_blocks: int = 20_000
    num_gated_blocks: int = 0
    """More blocks for ours, that the head would fit into and is not let into."""
    num_spare_seqs: int = 0
    takes_pins: bool = False
    """Running turns need more blocks, some in every step, and find them in pins alone."""
    pinned_prompt_tokens: int = 520
    running_prompt_tokens: int = 8
    waiting_prompt_tokens: int = 600
    block_tokens: int = 512

    @property
    def num_pinned_blocks(self) -> int:
        """Blocks of all pins together."""
        return NUM_PINNED * (self.pinned_prompt_tokens // self.block_tokens)


SITUATIONS = (
    Situation("batch full"),
    # The paper's rules would give the pins up for the head; the released ones keep them all.
    Situation("head does not fit", rules="released", num_spare_blocks=1, num_spare_seqs=50),
    Situation("head is held back", num_spare_blocks=1, num_gated_blocks=8, num_spare_seqs=50),
    Situation("4 turns end per step", num_ending=4, waiting_prompt_tokens=8),
    Situation("running turns take pins", takes_pins=True, num_spare_blocks=300, block_tokens=16),
)


class AdmitsItsLoad(AgentKVPolicy):
    """Lets in all that an engine is loaded with, and from then on new jobs by its rules."""

    is_loaded = False

    def why_hold_back(self, request: AdmissionRequest) -> str | None:
        return super().why_hold_back(request) if self.is_loaded else None


class LoadedEngine:
    """A scheduler brought into a situation, and kept in it: vLLM's own ("stock") or one of ours.

    Ours reads replies in a thread, as a server's does.
    """

    def __init__(self, situation: Situation, policy: str, seed: int, *, is_async: bool) -> None:
        self._situation = situation
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._hasher = sha256_hasher(situation.block_tokens)
        is_stock = policy == "stock"
        has_pinned_blocks = not is_stock or situation.takes_pins
        settings = {"policy": policy, "max_ttl_s": 3600.0, "prefill_reload_s": [0.0, 1.0, 0.0]}
        if policy in ("continuum", "context_serve"):
            settings |= {"rules": situation.rules, "ttl": "fixed", "fixed_ttl_s": 3600.0}
        self.scheduler = build_scheduler(
            SchedulerShape(
                # The null block, one per running turn, and the pinned blocks; for stock those are
                # free, and only there where its running turns must have it too.
                num_blocks=1
                + NUM_RUNNING
                + situation.num_spare_blocks
                + has_pinned_blocks * (situation.num_pinned_blocks + situation.num_gated_blocks),
                block_tokens=situation.block_tokens,
                max_num_seqs=NUM_RUNNING + situation.num_spare_seqs,
                max_num_batched_tokens=8192,
                max_model_tokens=4096,
                settings=None if is_stock else settings,
                is_async=is_async,
                log_stats=True,
            ),
            decode=lambda token_ids: REPLY,  # without a model there is no tokenizer
            policy_class=AdmitsItsLoad if policy == "agentkv" else None,
        )
        self._retention = getattr(self.scheduler, "retention", None)
        if not is_stock:  # in place of the engine's busy loop, which does not run here
            queues = SimpleNamespace(input_queue=SimpleQueue(), output_queue=SimpleQueue())
            self.scheduler.attach(queues)
        self._add(NUM_PINNED, situation.pinned_prompt_tokens, [2] * NUM_PINNED)
        while self._counts() != (0, 0):
            self.step()
        self._add(NUM_RUNNING, situation.running_prompt_tokens, self._lengths())
        for _ in range(2):
            self.step()
        if policy == "agentkv":
            self.scheduler.retention.policy.rules.is_loaded = True
        self.keep_up()

    def _lengths(self) -> list[int]:
        """Output tokens of the first running turns: staggered where some must end per step."""
        if not self._situation.num_ending:
            return [ENDLESS_TOKENS] * NUM_RUNNING
        return [4 + index // self._situation.num_ending for index in range(NUM_RUNNING)]

    def _add(self, num: int, prompt_tokens: int, lengths: list[int]) -> None:
        for index, length in enumerate(lengths[:num]):
            # With blocks of 16 tokens the same number fills one in each step.
            num_tokens = prompt_tokens + index % 16
            prompt = [self._random.randrange(1000) for _ in range(num_tokens)]
            job_id = f"job{next(self._numbers)}"
            self.scheduler.add_request(
                make_request(
                    f"{job_id}-turn",
                    prompt,
                    max_tokens=length,
                    tags={"job_id": job_id},
                    block_hasher=self._hasher,
                )
            )

    def step(self) -> tuple[float, float, Any]:
        """Seconds of `schedule` and of `update_from_output`, and the batch."""
        schedule_s, output = timed(self.scheduler.schedule)
        batch, requests = output.num_scheduled_tokens, self.scheduler.requests
        sampled = [[] if requests[id_].is_prefill_chunk else [7] for id_ in batch]
        answer = runner_output(list(batch), sampled)
        update_s, _ = timed(partial(self.scheduler.update_from_output, output, answer))
        return schedule_s, update_s, batch

    def keep_up(self) -> None:
        """Refill the queue, and end the oldest pins of turns that ended since."""
        missing = NUM_WAITING - self._counts()[1]
        life = NUM_RUNNING // self._situation.num_ending if self._situation.num_ending else 4
        self._add(missing, self._situation.waiting_prompt_tokens, [life] * missing)
        if self._retention is not None:
            pins = self._retention.pins
            for pin in list(pins)[: max(0, len(pins) - NUM_PINNED)]:
                self._retention.release(pin.job_id)

    def _counts(self) -> tuple[int, int]:
        """Requests running and waiting."""
        return len(self.scheduler.running), len(self.scheduler.waiting)

    def check(self) -> None:
        """Raise AssertionError unless the engine, after a step, is in its situation."""
        num_pinned = 0 if self._retention is None else len(self._retention.pins)
        least = NUM_PINNED // 2 + 1 if self._situation.takes_pins else NUM_PINNED
        most = NUM_PINNED - 1 if self._situation.takes_pins else NUM_PINNED
        assert least <= num_pinned <= most, num_pinned
        assert self._counts() == (NUM_RUNNING - self._situation.num_ending, NUM_WAITING)


def measure(seed: int) -> Iterator[Row]:
    """Rows for `schedule` and `update_from_output` in each situation, sync and async."""
    for situation in SITUATIONS:
        for is_async in (False, True):
            for policy in ("agentkv",) if situation.num_gated_blocks else POLICIES:
                with without_garbage_collection():
                    yield from _measure(situation, policy, seed, is_async=is_async)


def _measure(situation: Situation, policy: str, seed: int, *, is_async: bool) -> Iterator[Row]:
    loaded = [LoadedEngine(situation, name, seed, is_async=is_async) for name in ("stock", policy)]
    _round(loaded, swap=False)  # the first steps differ from later ones in both
    rounds = np.array([_round(loaded, swap=index % 2 == 1) for index in range(ROUNDS)])
    loaded[1].check()
    kind = f"{policy}, {'async' if is_async else 'sync'}, {situation.name}"
    decides = policy in ("context_serve", "agentkv") and situation.num_ending > 0
    target = DECIDING_TARGET_RATIO if decides else TARGET_RATIO
    for place, what, most in ((0, "schedule()", target), (1, "update_from_output()", None)):
        stock_s, ours_s = rounds[:, 0, :, place], rounds[:, 1, :, place]
        yield ratio_row(f"scheduler: {what}, {kind}", stock_s, ours_s, target=most)


def _round(loaded: list[LoadedEngine], *, swap: bool) -> list[list[tuple[float, float]]]:
    """Seconds of both calls, by engine and step."""
    times_s: list[list[tuple[float, float]]] = [[] for _ in loaded]
    for step in range(STEPS_PER_ROUND):
        batches: dict[int, object] = {}
        for index in (1, 0) if swap != (step % 2 == 1) else (0, 1):
            schedule_s, update_s, batches[index] = loaded[index].step()
            loaded[index].keep_up()
            times_s[index].append((schedule_s, update_s))
        # else the two engines did not do the same work, and their times say nothing
        assert batches[0] == batches[1], f"step {step}: {batches[0]} and {batches[1]}"
    return times_s
