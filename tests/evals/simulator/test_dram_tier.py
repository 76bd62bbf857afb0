"""The DRAM tier: what it holds, what a reload costs, and that it is used instead of computing."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from agentkv.evals.simulator.dram_tier import DramTier
from agentkv.evals.workload.plans import Workload

from .simulated import job, machine, random_jobs, simulate


@pytest.mark.parametrize(
    ("num_blocks", "put", "asked", "num_held"),
    [
        (4, ("a0 a1", "b0 b1", "c0 c1"), "a0 a1", 0),
        (4, ("a0 a1", "b0 b1", "c0 c1"), "b0 b1", 2),
        (4, ("a0 a1", "b0 b1", "a0 a1", "c0 c1"), "a0 a1", 2),
        (3, ("a0 a1", "b0 b1"), "a0 a1", 1),
        (10, ("a0 a2",), "a0 a1 a2", 1),
    ],
)
def test_the_longest_unused_context_goes_first(
    num_blocks: int, put: tuple[str, ...], asked: str, num_held: int
) -> None:
    """A full tier evicts the least recently used context from its end; a gap ends what is held."""
    tier = DramTier(num_blocks)
    for names in put:
        tier.arrived(tier.put(names.split()))
    assert tier.num_held(asked.split()) == num_held


def test_a_block_on_its_way_to_the_tier_must_be_waited_for() -> None:
    """It is copied once; a lookup that reaches it has no answer before it has arrived."""
    tier = DramTier(4)
    assert tier.put(["a0", "a1"]) == ["a0", "a1"]
    tier.arrived(["a0"])
    assert tier.put(["a0", "a1", "a2"]) == ["a2"]
    assert (tier.num_held(["a0"]), tier.num_held(["a0", "a1"])) == (1, None)
    tier.arrived(["a1", "a2"])
    assert tier.num_held(["a0", "a1", "a3"]) == 2


def two_jobs_that_evict_each_other() -> Workload:
    """Two jobs of which each nearly fills the pool; the second runs during the first one's tool."""
    first = job("first", 0.0, (2000, 5, 5.0), (100, 5, 0.0))
    return Workload("two", 0, (first, job("second", 1.0, (2500, 5, 0.0))), None)


def test_an_evicted_context_is_reloaded_over_the_link() -> None:
    """All full blocks of an evicted context cross the link; without a tier they are recomputed."""
    on = machine()
    _, run = simulate(two_jobs_that_evict_each_other(), "fcfs+offload", on)
    turn = next(job for job in run.jobs if job.job_id == "first").turns[1]
    assert turn.cached_tokens == 2004 // 16 * 16
    assert run.counters["recomputed_tokens"] == 0
    assert 0 < run.counters["reloaded_tokens"] <= 2000
    num_bytes = run.counters["reloaded_tokens"] // on.block_tokens * on.block_bytes
    assert 0.0 < turn.to_first_token_s - num_bytes / on.pcie_bytes_s < 0.05
    _, without = simulate(two_jobs_that_evict_each_other(), "fcfs", on)
    assert without.counters["recomputed_tokens"] > 1000


def test_a_turn_waits_until_its_context_has_been_copied_out() -> None:
    """Over a link slower than its tool, a load begins when the whole context has crossed it."""
    copy_s, num_blocks = 10.0, 2000 // machine().block_tokens
    on = replace(machine(), pcie_bytes_s=num_blocks * machine().block_bytes / copy_s)
    _, run = simulate(two_jobs_that_evict_each_other(), "fcfs+offload", on)
    load_s = copy_s * run.counters["reloaded_tokens"] / on.block_tokens / num_blocks
    turn = next(job for job in run.jobs if job.job_id == "first").turns[1]
    assert turn.sent_s < copy_s
    assert turn.cached_tokens == 2004 // 16 * 16
    assert turn.sent_s + turn.to_first_token_s > copy_s + load_s > 1.5 * copy_s


@pytest.mark.parametrize("seed", [0, 1])
def test_a_turn_that_preempts_itself_makes_room_for_the_next(seed: int) -> None:
    """If the last running turn preempts itself, turns with loaded KV run instead: none is stuck."""
    chance = random.Random(seed)
    jobs = [
        job(
            f"job-{number}",
            0.01 * number,
            *((chance.randint(200, 900), chance.randint(100, 400), 0.05) for _ in range(3)),
        )
        for number in range(6)
    ]
    _, run = simulate(
        Workload("six", seed, tuple(jobs), None),
        "fcfs+offload",
        replace(machine(), pcie_bytes_s=1e18),
        dram_gib=1e12,
    )
    assert [job.status for job in run.jobs] == ["done"] * 6


def test_the_price_of_a_load_is_that_of_the_link() -> None:
    """The price of a load that the policy measures is at least that of the link."""

    def load_token_s(bytes_per_s: float) -> float:
        on = replace(machine(), pcie_bytes_s=bytes_per_s)
        simulation, run = simulate(random_jobs(40), "agentkv+offload", on)
        assert run.counters["reloads"] > 20
        return float(simulation.engine.scheduler.retention.costs.offload.load_token_s)

    token_bytes = machine().block_bytes / machine().block_tokens
    assert load_token_s(1e8) >= token_bytes / 1e8 > 10 * load_token_s(1e12)
