"""vLLM's real scheduler and block pool without a model: every step samples one token per request.

For measuring what scheduling itself costs: real block hashes, real statistics, the real clock.
"""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from typing import Any

from .simulation.real_scheduler import (
    SchedulerShape,
    build_scheduler,
    make_request,
    runner_output,
    sha256_hasher,
)

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
        self.scheduler = build_scheduler(shape, folder, decode=lambda token_ids: REPLY)
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
