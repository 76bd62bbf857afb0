"""A state machine on vLLM's real scheduler: nothing leaks and nothing sticks under any events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from agentkv.protocol import ToolEvent
from agentkv.testing.stepped_engine import prompt_of
from tests.integrations.vllm.harness import Engine

UNTAGGED = ("x", "y", "z")
"""Agents that name no job: theirs are inferred."""
JOBS = st.sampled_from(["a", "b", "c", "d", *UNTAGGED, *UNTAGGED])


class Agents(RuleBasedStateMachine):
    """Jobs that arrive, decode, finish, abort, expire, collide and are reset, in any order."""

    is_async: bool
    more_options: Mapping[str, Any] = {}
    may_reset_running = True

    @initialize(
        num_blocks=st.integers(16, 48),
        policy=st.sampled_from(["continuum", "context_serve", "agentkv"]),
        rules=st.sampled_from(["paper", "released"]),
        ttl=st.sampled_from(["paper", "fixed"]),
        max_num_seqs=st.integers(1, 4),
        max_num_batched_tokens=st.sampled_from([16, 64, 512]),
        max_jobs=st.sampled_from([2, 100]),
    )
    def start(self, **options: Any) -> None:
        self.engine = Engine(
            is_async=self.is_async,
            cold_start_samples=2,
            job_lease_s=30.0,
            **options,
            **self.more_options,
        )
        self.histories: dict[str, list[int]] = {}
        self.requests: dict[str, Any] = {}
        self.last_request: dict[str, Any] = {}
        self.of_named_jobs: set[str] = set()

    @rule(
        job=JOBS,
        new_tokens=st.integers(1, 80),
        max_tokens=st.integers(1, 30),
        is_last_step=st.sampled_from([0, 0, 0, 1]),
        with_stop=st.booleans(),
        repeats=st.sampled_from([1, 1, 2, 3]),
        turn=st.sampled_from([None, None, 1, 2]),
        command=st.sampled_from([None, "ls", "pip install torch", "frobnicate"]),
        repeats_reply=st.booleans(),
    )
    def arrive(
        self,
        job: str,
        new_tokens: int,
        max_tokens: int,
        is_last_step: int,
        with_stop: bool,
        repeats: int,
        turn: int | None,
        command: str | None,
        repeats_reply: bool,
    ) -> None:
        reply = None if command is None else f"```bash\n{command}\n```"
        history = self.histories.get(job, [])
        if repeats_reply and job in self.last_request:
            history = history + list(self.last_request[job].output_token_ids)
        prompt = (history + prompt_of(new_tokens, salt=len(history)))[:180]
        tags: dict[str, Any] = {}
        if job not in UNTAGGED:
            tags = {"job_id": job, "is_last_step": is_last_step}
            if turn is not None:
                tags["turn"] = turn
        for _ in range(repeats):
            request_id = self.engine.add(
                prompt,
                max_tokens=max_tokens,
                stop=["x"] if with_stop else None,
                reply=reply,
                **tags,
            )
            request = self.requests[request_id] = self.engine.scheduler.requests[request_id]
            self.last_request[job] = request
            if tags:
                self.of_named_jobs.add(request_id)
        self.histories[job] = prompt

    @rule(num_steps=st.integers(1, 12))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.engine.step()

    @rule(which=st.integers(0, 50))
    def abort(self, which: int) -> None:
        live = sorted(self.engine.scheduler.requests)
        if live:
            self.engine.abort(live[which % len(live)])

    @rule(seconds=st.sampled_from([0.5, 1.9, 2.1, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.engine.wait(seconds)

    @rule(job=st.sampled_from("abcd"))
    def release(self, job: str) -> None:
        self.engine.retention.release(job)

    @rule(
        job=st.sampled_from("abcd"),
        state=st.sampled_from(["started", "finished"]),
        duration_s=st.sampled_from([None, 0.0, 0.3, 100.0]),
    )
    def tool(self, job: str, state: Any, duration_s: float | None) -> None:
        event = ToolEvent(state=state, command="make it", duration_s=duration_s)
        self.engine.retention.tool_signal(job, event)

    @rule(reset_running=st.booleans())
    def reset(self, reset_running: bool) -> None:
        if not self.engine.in_flight:
            with_running = reset_running and self.may_reset_running
            self.engine.scheduler.reset_prefix_cache(reset_running_requests=with_running)

    @invariant()
    def every_block_is_free_or_held_as_often_as_it_is_used(self) -> None:
        if not hasattr(self, "engine"):
            return
        assert self.engine.lost_blocks() == []

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        engine = self.engine
        engine.run(max_steps=4000)
        engine.wait(3600.0)
        assert engine.pinned == {}
        assert engine.num_free == engine.pool.num_gpu_blocks - 1
        assert all(block.ref_cnt == 0 for block in engine.pool.blocks[1:])
        assert not engine.retention.jobs.turns
        assert not engine.retention.admission.guard.waiting
        assert engine.retention.inference.next_end_s is None
        assert len(engine.retention.decisions.awaiting) <= len(engine.retention.jobs)
        assert not engine.scheduler.requests
        assert all(request.is_finished() for request in self.requests.values())
        counters = engine.totals
        begun = sum(counters.get("pins_total", {}).values())
        assert begun == sum(counters.get("pin_ends_total", {}).values())


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_nothing_leaks_and_nothing_sticks(is_async: bool) -> None:
    """After draining: every block free, no reference left, every request done, pins all ended."""
    machine = type("Machine", (Agents,), {"is_async": is_async})
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=100, stateful_step_count=40, deadline=None),
    )
