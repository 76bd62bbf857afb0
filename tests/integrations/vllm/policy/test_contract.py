"""The contract of `Policy`, held by each of ours and by an arbitrary one on vLLM's scheduler."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from agentkv.durations.ttl import TTL
from agentkv.policies.base import AllocationRequest, Policy
from agentkv.policies.costs import RestoreCost
from agentkv.policies.jobs import Decision, Job, Turn
from agentkv.policies.names import SHIPPED, read_settings
from agentkv.policies.pins import Pin
from tests.integrations.vllm.harness import Engine
from tests.stepped_engine import prompt_of


class ArbitraryPolicy(Policy):
    """Answers by chance, within the contract."""

    allows_partial_eviction = True
    has_admission_control = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._rng = random.Random(7)
        self._ranks: dict[str, int] = {}

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        return TTL(self._rng.choice((0.0, 0.01, 5.0)), "by chance")

    def decide(self, command: str | None, cost: RestoreCost, prediction: Any = None) -> Decision:
        return Decision(self.undecided_ttl(cost), command)

    def rank(self, turn: Turn, *, is_preempted: bool, is_pinned: bool) -> tuple[int, int, int]:
        chosen = self._ranks.setdefault(turn.request_id, self._rng.randrange(100))
        return (1, chosen, turn.order)

    def victim_rank(self, turn: Turn) -> tuple[int, int, int]:
        return (1, -self._ranks.get(turn.request_id, 0), turn.order)

    def sorts_running(self) -> bool:
        return self._rng.random() < 0.5

    def pins_that_yield(self, pins: Any, request: AllocationRequest) -> list[Pin[Any]]:
        count = len(pins) if request.runs_alone else self._rng.randrange(len(pins) + 1)
        return self._rng.sample(list(pins), count)

    def why_hold_back(self, request: Any) -> str | None:
        return self._rng.choice((None, "by chance"))

    def max_overtakes(self, num_turns: float) -> float:
        return self._rng.randrange(5)


@pytest.mark.parametrize("make", [*SHIPPED.values(), ArbitraryPolicy])
def test_a_policy_gives_up_all_pins_where_nothing_else_could_make_room(
    make: type[Policy],
) -> None:
    """With no other request running, every pin yields to any request: nothing waits for ever."""
    name = next((key for key, value in SHIPPED.items() if value is make), "agentkv")
    policy = make(read_settings({}, policy=name), 16_000)
    pins = [Pin(f"job-{order}", order, range(9), 0, 0.0, 9.0 + order, 9) for order in (5, 3, 1)]
    turn = Turn("request", Job("own", 2), 7, 0.0, 100)
    for asker, has_blocks in itertools.product((turn, None), (True, False)):
        request = AllocationRequest(asker, has_blocks, int(has_blocks), 1000)
        yielded = policy.pins_that_yield(pins, request)
        assert sorted(pin.job_order for pin in yielded) == [1, 3, 5]


def test_an_arbitrary_policy_within_the_contract_starves_and_leaks_nothing(
    make_engine: Callable[..., Engine],
) -> None:
    """If a policy keeps its contract, all turns end and all blocks come back."""
    engine = make_engine(num_blocks=60, policy_class=ArbitraryPolicy)
    for turn, job in itertools.product(range(4), range(8)):
        prompt = prompt_of(60 + 60 * turn, salt=job)
        engine.add(prompt, max_tokens=20, job_id=f"job-{job}", is_last_step=turn == 3)
        engine.steps(5)
    engine.run(max_steps=4000)
    engine.wait(3600.0)
    assert (engine.pinned, engine.num_free) == ({}, engine.pool.num_gpu_blocks - 1)
