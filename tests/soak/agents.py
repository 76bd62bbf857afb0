"""Random agents on one engine: jobs that arrive, run tools, give up and are reset in any order.

Every random test of the plugin plays them, all decided by a seed, and adds what it looks at: leaks,
frees and states (`watch/test_kv_frees.py`), KV events (`engine/test_kv_events.py`), and a tier
(`tier.py` of this folder).
"""

import random
from collections import Counter
from typing import Any, ClassVar

from agentkv.protocol import ToolEvent
from tests.integrations.vllm.harness import Engine
from tests.stepped_engine import prompt_of

UNTAGGED = ("x", "y", "z")
"""Agents that name no job: theirs are inferred."""
JOBS = ("a", "b", "c", "d", "a.1", "a.2")
"""Jobs that are named; "a.1" and "a.2" are sub-agents of "a", whose prompt theirs begin with."""
COMMANDS = (None, "ls", "pytest -q", "pip install torch", "frobnicate")
MAX_PROMPT_TOKENS, MAX_OUTPUT_TOKENS = 180, 30
MAX_LIVE = 16
"""Requests in the engine beyond which no more arrive."""
MAX_STEPS = 3000
"""In which some request must end, once no more arrive."""


class Agents:
    """Events on one engine; AssertionError if a block is lost or something sticks."""

    weights: ClassVar[dict[str, int]] = {
        **{"turn": 40, "steps": 35, "tool": 8, "abort": 7, "release": 4, "wait": 4, "reset": 2}
    }

    def __init__(self, seed: str, **given: Any) -> None:
        self.rng = random.Random(seed)
        self.shape = {**self.draw_shape(), **given}
        self.engine: Any = self.make_engine()
        self.counts: Counter[str] = Counter()
        self.requests: dict[str, Any] = {}
        self._histories: dict[str, list[int]] = {}
        self._last: dict[str, Any] = {}
        self.of_named_jobs: set[str] = set()

    def draw_shape(self) -> dict[str, Any]:
        """The options of a small engine; those given to the constructor go before."""
        rng = self.rng
        return {
            "num_blocks": rng.randint(16, 48),
            "max_num_seqs": rng.randint(1, 4),
            "max_num_batched_tokens": rng.choice((16, 64, 512)),
            "is_async": rng.random() < 0.5,
            "policy": rng.choice(("continuum", "context_serve", "agentkv")),
            "rules": rng.choice(("paper", "released")),
            "ttl": rng.choice(("paper", "fixed")),
            "max_jobs": rng.choice((3, 100)),
            "cold_start_samples": 2,
            "job_lease_s": 30.0,
        }

    def make_engine(self) -> Any:
        return Engine(**self.shape)

    def play(self, num_events: int) -> None:
        """Play that number of events, and check after each."""
        while self.num_events < num_events:
            (event,) = self.rng.choices(list(self.weights), list(self.weights.values()))
            getattr(self, event)()
            self.counts[event] += 1
            self.check()

    @property
    def num_events(self) -> int:
        return self.counts.total()

    def finish(self) -> None:
        """End everything; nothing may be left."""
        scheduler = self.engine.scheduler
        num_left, since = len(scheduler.requests), self.counts["step"]
        while scheduler.has_requests() or self.engine.in_flight:
            self.step()
            if len(scheduler.requests) < num_left:
                num_left, since = len(scheduler.requests), self.counts["step"]
            stuck = f"none ended in {MAX_STEPS} steps: {list(scheduler.requests)}"
            assert self.counts["step"] - since < MAX_STEPS, stuck
        self.engine.wait(3600.0)
        self.check()
        self.check_empty()

    def check(self) -> None:
        """After each event: every block is free, or held as often as it is used."""
        assert not self.engine.lost_blocks(), f"blocks lost: {self.engine.lost_blocks()}"

    def check_empty(self) -> None:
        """At the end: all requests are over, all blocks free, all pins ended."""
        engine = self.engine
        assert not engine.scheduler.requests
        assert all(request.is_finished() for request in self.requests.values())
        assert engine.num_free == engine.pool.num_gpu_blocks - 1
        assert all(block.ref_cnt == 0 for block in engine.pool.blocks[1:])
        if not hasattr(engine.scheduler, "retention"):
            return
        assert not engine.retention.jobs.turns
        assert not engine.retention.admission.guard.waiting
        assert not engine.retention.costs.offload.is_loading
        assert engine.retention.inference.next_end_s is None
        assert len(engine.retention.decisions.awaiting) <= len(engine.retention.jobs)
        begun, ended = (engine.totals.get(name, {}) for name in ("pins_total", "pin_ends_total"))
        assert sum(begun.values()) == sum(ended.values())

    # What happens

    def turn(self) -> None:
        """A turn of a random job, sometimes as several requests, a retry, or cut back."""
        if len(self.engine.scheduler.requests) >= MAX_LIVE:
            return self.steps()
        rng, job = self.rng, self.rng.choice((*JOBS, *UNTAGGED))
        parent, _, child = job.partition(".")
        start = self._histories.get(parent, []) if child else []
        history = self._histories.get(job, start)
        if rng.random() < 0.1:
            history = history[: rng.randrange(len(history) + 1)]  # the client edits it
        elif job in self._last and rng.random() < 0.5:
            history = history + list(self._last[job].output_token_ids)
        new = prompt_of(rng.randint(1, 90), salt=rng.choice((len(history), rng.randrange(50))))
        prompt = (history + new)[:MAX_PROMPT_TOKENS]
        fields: dict[str, Any] = {}
        if job not in UNTAGGED:
            is_last = rng.random() < (0.8 if len(prompt) == MAX_PROMPT_TOKENS else 0.1)
            fields |= {"job_id": job, "is_last_step": int(is_last)}
            fields |= {"turn": rng.randint(1, 2)} if rng.random() < 0.3 else {}
            fields |= {"parent_job_id": parent} if child else {}
        command = rng.choice(COMMANDS)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            request_id = self.engine.add(
                prompt,
                max_tokens=rng.randint(1, MAX_OUTPUT_TOKENS),
                stop=["x"] if rng.random() < 0.2 else None,
                reply=None if command is None else f"```bash\n{command}\n```",
                **fields,
            )
            request = self.requests[request_id] = self.engine.scheduler.requests[request_id]
            self._last[job] = request
            if job not in UNTAGGED and request_id in self.engine.retention.jobs.turns:
                self.of_named_jobs.add(request_id)  # and of no second conversation under the id
        self._histories[job] = prompt if len(prompt) < MAX_PROMPT_TOKENS else []

    def steps(self) -> None:
        for _ in range(self.rng.randint(1, 12)):
            self.step()

    def step(self) -> Any:
        output = self.engine.step()
        self.counts["step"] += 1
        if output is not None:
            self.counts["preemptions"] += len(output.preempted_req_ids or ())
            if not output.total_num_scheduled_tokens:
                self.engine.clock.now_s += 1.0  # so that who is held back has its turn
        return output

    def tool(self) -> None:
        state, duration_s = self.rng.choice(("started", "finished")), self.rng.choice((None, 0.3))
        event = ToolEvent(state=state, command="make it", duration_s=duration_s)
        self.engine.retention.tool_signal(self.rng.choice(JOBS), event)

    def abort(self) -> None:
        requests = self.engine.scheduler.requests.items()
        live = [request_id for request_id, request in requests if not request.is_finished()]
        if live:
            self.engine.abort(self.rng.choice(live))

    def release(self) -> None:
        self.engine.retention.release(self.rng.choice(JOBS))

    def wait(self) -> None:
        self.engine.wait(self.rng.choice((0.05, 0.5, 1.9, 2.1, 31.0)))

    def reset(self) -> None:
        """Of the prefix cache, with all turns or without."""
        if not self.engine.in_flight:
            running = self.rng.random() < 0.5 and self.can_reset_running()
            tier = self.rng.random() < 0.5 and self.can_reset_tier()
            self.engine.scheduler.reset_prefix_cache(
                reset_running_requests=running, reset_connector=tier or (running and self.has_tier)
            )

    @property
    def has_tier(self) -> bool:
        return bool(self.shape.get("offload_bytes"))

    def can_reset_running(self) -> bool:
        """With a tier vLLM asserts that a turn which a reset has preempted loads nothing in the
        next step (offloading/scheduler.py:1862); `tier.py` resets those too, with an empty tier."""
        return not self.has_tier

    def can_reset_tier(self) -> bool:
        return False
