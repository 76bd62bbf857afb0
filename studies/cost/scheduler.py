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
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from agentkv.testing.vllm_scheduler import (
    SchedulerShape,
    build_scheduler,
    make_request,
    runner_output,
    sha256_hasher,
)

from ..policy_grid.ablation import WithoutAdmission
from .rows import Row, ratio_row, timed, without_garbage_collection

NUM_RUNNING, NUM_WAITING, NUM_PINNED = 200, 1000, 300
ROUNDS, STEPS_PER_ROUND = 20, 10
TARGET_RATIO = 1.15
DECIDING_TARGET_RATIO = 1.25
"""Where turns end under a policy that predicts: 14 us for each decision, and the replies are read
while no model runs that would leave the interpreter to the thread that reads them."""
POLICIES = ("continuum", "context_serve", "agentkv")
GATING_POLICIES = ("agentkv",)
ENDLESS_TOKENS = 3000


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


class BatchesDifferError(AssertionError):
    """The two engines did not do the same work, so their times say nothing."""


class LoadedEngine:
    """An engine brought into a situation, and kept in it."""

    def __init__(
        self, situation: Situation, policy: str, folder: Path, seed: int, *, is_async: bool
    ) -> None:
        self._situation = situation
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        has_pinned_blocks = policy != "stock" or situation.takes_pins
        self.engine = BareEngine(
            folder,
            policy,
            is_async=is_async,
            # The null block, one per running turn, and the pinned blocks; for stock those are
            # free, and only there where its running turns are to have it too.
            num_blocks=1
            + NUM_RUNNING
            + situation.num_spare_blocks
            + has_pinned_blocks * (situation.num_pinned_blocks + situation.num_gated_blocks),
            block_tokens=situation.block_tokens,
            max_num_seqs=NUM_RUNNING + situation.num_spare_seqs,
            settings={
                "rules": situation.rules,
                "ttl": "fixed",
                "fixed_ttl_s": 3600.0,
                "max_ttl_s": 3600.0,
                "prefill_reload_s": [0.0, 1.0, 0.0],
            },
            # That many new jobs would not be admitted next to that much pinned memory.
            has_admission=not situation.takes_pins,
        )
        self._add(NUM_PINNED, situation.pinned_prompt_tokens, [2] * NUM_PINNED)
        while self.engine.counts() != (0, 0):
            self.engine.step()
        self._add(NUM_RUNNING, situation.running_prompt_tokens, self._lengths())
        for _ in range(2):
            self.engine.step()
        self.keep_up()

    def _lengths(self) -> list[int]:
        """Output tokens of the first running turns: staggered where some are to end per step."""
        if not self._situation.num_ending:
            return [ENDLESS_TOKENS] * NUM_RUNNING
        return [4 + index // self._situation.num_ending for index in range(NUM_RUNNING)]

    def _add(self, num: int, prompt_tokens: int, lengths: list[int]) -> None:
        for index, length in enumerate(lengths[:num]):
            # With blocks of 16 tokens the same number fills one in each step.
            num_tokens = prompt_tokens + index % 16
            prompt = [self._random.randrange(1000) for _ in range(num_tokens)]
            self.engine.add(f"job{next(self._numbers)}", prompt, max_tokens=length)

    def keep_up(self) -> None:
        """Refill the queue, and end the pins of turns that ended since."""
        _, num_waiting = self.engine.counts()
        missing = NUM_WAITING - num_waiting
        life = NUM_RUNNING // self._situation.num_ending if self._situation.num_ending else 4
        self._add(missing, self._situation.waiting_prompt_tokens, [life] * missing)
        self.engine.release_pins_beyond(NUM_PINNED)

    def check(self) -> None:
        """Raise BatchesDifferError unless the engine, after a step, is in its situation."""
        num_pinned = self.engine.num_pinned_jobs()
        is_pinned = num_pinned == NUM_PINNED
        if self._situation.takes_pins:
            is_pinned = NUM_PINNED // 2 < num_pinned < NUM_PINNED
        found = self.engine.counts()
        if not is_pinned or found != (NUM_RUNNING - self._situation.num_ending, NUM_WAITING):
            raise BatchesDifferError(
                f"{self._situation.name}: running, waiting are {found}, pinned {num_pinned}"
            )


def measure(folder: Path, seed: int) -> Iterator[Row]:
    """Rows for `schedule` and `update_from_output` in each situation, sync and async."""
    for situation in SITUATIONS:
        for is_async in (False, True):
            for policy in POLICIES if not situation.num_gated_blocks else GATING_POLICIES:
                with without_garbage_collection():
                    yield from _measure(situation, policy, folder, seed, is_async=is_async)


def _measure(
    situation: Situation, policy: str, folder: Path, seed: int, *, is_async: bool
) -> Iterator[Row]:
    loaded = [
        LoadedEngine(situation, name, folder, seed, is_async=is_async) for name in ("stock", policy)
    ]
    _round(loaded, swap=False)  # the first steps differ from later ones in both
    rounds = [_round(loaded, swap=index % 2 == 1) for index in range(ROUNDS)]
    loaded[1].check()
    kind = f"{policy}, {'async' if is_async else 'sync'}, {situation.name}"
    schedule = [(stock.schedule_s, ours.schedule_s) for stock, ours in rounds]
    update = [(stock.update_s, ours.update_s) for stock, ours in rounds]
    decides = policy in ("context_serve", "agentkv") and situation.num_ending > 0
    target = DECIDING_TARGET_RATIO if decides else TARGET_RATIO
    yield ratio_row(f"scheduler: schedule(), {kind}", schedule, target=target)
    yield ratio_row(f"scheduler: update_from_output(), {kind}", update, target=None)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds per step of one engine in one round."""

    schedule_s: list[float]
    update_s: list[float]


def _round(loaded: list[LoadedEngine], *, swap: bool) -> list[Times]:
    times = [Times([], []) for _ in loaded]
    for step in range(STEPS_PER_ROUND):
        batches: dict[int, object] = {}
        for index in (1, 0) if swap != (step % 2 == 1) else (0, 1):
            engine = loaded[index].engine
            elapsed_s, output = timed(engine.schedule)
            times[index].schedule_s.append(elapsed_s)
            batches[index] = output.num_scheduled_tokens
            sampled = engine.sample(output)
            elapsed_s, _ = timed(partial(engine.update, output, sampled))
            times[index].update_s.append(elapsed_s)
            loaded[index].keep_up()
        if batches[0] != batches[1]:
            raise BatchesDifferError(f"step {step}: {batches[0]} and {batches[1]}")
    return times


MAX_MODEL_TOKENS = 4096
MAX_BATCHED_TOKENS = 8192
REPLY = "I will look at the file first, since the test names it.\n" * 14 + (
    "```bash\ncd /testbed && frobnicate --all src/module.py | head -50\n```"
)
"""What every reply reads as, 900 characters; what it runs is unknown, so every rule is asked."""


class Loop:
    """Stands in for the engine's busy loop, which nobody runs here."""

    def __init__(self) -> None:
        self.input_queue: SimpleQueue[Any] = SimpleQueue()
        self.output_queue: SimpleQueue[Any] = SimpleQueue()


class BareEngine:
    """One scheduler, stepped by hand: `schedule`, then `update` with what it returned.

    `policy` is "stock" or one of ours, which reads replies in a thread as a server's does. `folder`
    gets the config of a model that is never loaded.
    """

    def __init__(
        self,
        folder: Path,
        policy: str,
        *,
        is_async: bool = False,
        num_blocks: int,
        block_tokens: int = 16,
        max_num_seqs: int,
        settings: dict[str, Any] | None = None,
        has_admission: bool = True,
    ) -> None:
        shape = SchedulerShape(
            num_blocks=num_blocks,
            block_tokens=block_tokens,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=MAX_BATCHED_TOKENS,
            max_model_tokens=MAX_MODEL_TOKENS,
            settings=None if policy == "stock" else {**(settings or {}), "policy": policy},
            is_async=is_async,
            log_stats=True,
        )
        self._hasher = sha256_hasher(block_tokens)
        # Without a model there is no tokenizer.
        self.scheduler = build_scheduler(
            shape,
            decode=lambda token_ids: REPLY,
            policy_class=None if has_admission or policy != "agentkv" else WithoutAdmission,
        )
        if policy != "stock":
            self.scheduler.attach(Loop())

    def add(self, job_id: str, prompt: list[int], *, max_tokens: int) -> None:
        """Add one turn of a job; the stock scheduler takes no notice of the job."""
        self.scheduler.add_request(
            make_request(
                f"{job_id}-turn",
                prompt,
                max_tokens=max_tokens,
                tags={"job_id": job_id},
                block_hasher=self._hasher,
            )
        )

    def schedule(self) -> Any:
        return self.scheduler.schedule()

    def sample(self, output: Any) -> Any:
        """What a model runner would return for a step: a token for each finished prefill."""
        requests = self.scheduler.requests
        ids = list(output.num_scheduled_tokens)
        return runner_output(ids, [[] if requests[id_].is_prefill_chunk else [7] for id_ in ids])

    def update(self, output: Any, sampled: Any) -> Any:
        return self.scheduler.update_from_output(output, sampled)

    def step(self) -> None:
        output = self.schedule()
        self.update(output, self.sample(output))

    def counts(self) -> tuple[int, int]:
        """Requests running and waiting."""
        return len(self.scheduler.running), len(self.scheduler.waiting)

    def num_pinned_jobs(self) -> int:
        """Jobs pinned; 0 under the stock scheduler."""
        retention = getattr(self.scheduler, "retention", None)
        return 0 if retention is None else len(retention.pins)

    def release_pins_beyond(self, num_jobs: int) -> None:
        """End the oldest pins until `num_jobs` are left."""
        retention = getattr(self.scheduler, "retention", None)
        if retention is not None:
            for pin in list(retention.pins)[: max(0, len(retention.pins) - num_jobs)]:
                retention.release(pin.job_id)
