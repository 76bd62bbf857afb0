"""A policy of one's own on vLLM's real scheduler: its gate, and what its faults cost."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agentkv.guard import MAX_FAULTS
from agentkv.policies import TTL, Policy, RestoreCost, Turn
from tests.integrations.vllm.harness import Engine
from tests.stepped_engine import prompt_of


class Holds(Policy):
    """Holds every turn for five seconds."""

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        return TTL(5.0, "five seconds")


class Gated(Holds):
    """Lets no turn return before 2 s have passed since it arrived."""

    max_wait_s = 10.0

    def why_wait(self, turn: Turn) -> str | None:
        is_early = self.engine.now_s < turn.arrived_s + self.wait_s
        return "too early" if is_early else None

    wait_s = 2.0


def run_beside(engine: Engine, seconds: float) -> None:
    """Another request decodes while time passes, so that something always runs."""
    until_s = engine.clock.now_s + seconds
    while engine.clock.now_s < until_s:
        engine.step(step_s=0.25)


def test_a_returning_turn_waits_at_the_gate_while_others_run() -> None:
    """A turn that is not let in stands behind later ones, and goes in once it may."""
    engine = Engine(policy_class=Gated, num_blocks=200)
    context = engine.turn(prompt_of(100), job_id="a")
    engine.add(prompt_of(64, salt=5), max_tokens=200)
    engine.step()
    held = engine.add([*context, *prompt_of(20, salt=1)], job_id="a")
    later = engine.add(prompt_of(64, salt=6), max_tokens=100)
    run_beside(engine, 1.5)
    assert (later in engine.running(), held in engine.waiting()) == (True, True)
    run_beside(engine, 1.0)
    assert held not in engine.waiting()


def test_a_gate_that_never_opens_is_passed_after_its_limit() -> None:
    """`max_wait_s` bounds the wait of every turn that a policy holds back."""
    engine = Engine(
        policy_class=type("Closed", (Gated,), {"wait_s": 1e9}), num_blocks=400, max_num_seqs=4
    )
    context = engine.turn(prompt_of(100), job_id="a")
    engine.add(prompt_of(64, salt=5), max_tokens=2000)
    engine.step()
    held = engine.add([*context, *prompt_of(20, salt=1)], job_id="a")
    run_beside(engine, 9.0)
    assert held in engine.waiting()
    run_beside(engine, 1.5)
    assert held not in engine.waiting()


def test_a_gate_is_not_asked_while_nothing_runs() -> None:
    """A turn goes in at once if it would be the only one: nothing can stand still."""
    engine = Engine(policy_class=type("Closed", (Gated,), {"wait_s": 1e9}))
    context = engine.turn(prompt_of(100), job_id="a")
    began_s = engine.clock.now_s
    engine.turn([*context, *prompt_of(20, salt=1)], job_id="a")
    assert engine.clock.now_s - began_s < 1.0


def test_a_policy_may_hold_only_the_head_of_a_turn() -> None:
    """The pin holds `held_tokens` from the first on, in whole blocks; the tail is free at once."""
    held = {"held_tokens": lambda self, cost: cost.num_tokens - 40}
    engine = Engine(policy_class=type("Head", (Holds,), held), num_blocks=40)
    engine.turn(prompt_of(100), job_id="a")
    assert (engine.pinned, engine.num_free) == ({"a": 4}, 35)


def raises(*args: Any, **kwargs: Any) -> Any:
    raise ZeroDivisionError("planted")


def is_slow(*args: Any, **kwargs: Any) -> Any:
    time.sleep(0.11)
    return TTL(5.0, "slow")


FAULTS: dict[str, dict[str, Any]] = {
    "raises": {"undecided_ttl": raises},
    "ranks by nothing": {"rank": lambda *args, **kwargs: None},
    "ranks by no number": {"rank": lambda *args, **kwargs: (1, float("nan"), 0)},
    "holds for no time that there is": {"undecided_ttl": lambda *args: TTL(float("nan"), "")},
    "holds for less than no time": {"undecided_ttl": lambda *args: TTL(-1.0, "")},
    "gives up what it was not shown": {"pins_that_yield": lambda *args: [1, 2, 3]},
    "never lets its pins go": {"pins_that_yield": lambda *args: []},
    "takes 110 ms to answer": {"undecided_ttl": is_slow},
    "holds a part that is no number": {"held_tokens": lambda *args: None},
    "fails where turns end": {"turn_finished": raises},
    "fails at its start": {"bind": raises},
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_a_policy_that_fails_costs_decisions_and_nothing_else(faults: dict[str, Any]) -> None:
    """Where an answer cannot be used stock's takes its place; all turns end, blocks come back."""
    engine = Engine(policy_class=type("Bad", (Holds,), faults), num_blocks=40)
    contexts = {job: engine.turn(prompt_of(100, salt=job), job_id=str(job)) for job in range(4)}
    for job, context in contexts.items():
        engine.add([*context, *prompt_of(150, salt=9)], job_id=str(job))
    engine.run()
    engine.wait(6.0)
    assert (engine.pinned, engine.num_free) == ({}, 39)
    assert engine.totals["policy_faults_total"] > 0


def test_a_policy_that_keeps_failing_is_switched_off() -> None:
    """After MAX_FAULTS nothing is asked of it any more."""
    asked: list[int] = []

    def fails(*args: Any) -> Any:
        asked.append(1)
        raises()

    engine = Engine(policy_class=type("Bad", (Holds,), {"undecided_ttl": fails}))
    for turn in range(MAX_FAULTS + 10):
        engine.turn(prompt_of(40, salt=turn), job_id=f"job-{turn}")
    assert (len(asked), engine.retention.policy.guard.is_off) == (MAX_FAULTS, True)
