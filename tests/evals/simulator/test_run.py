"""Whole runs on vLLM's real scheduler: accounting, conservation, jumps, agreement with theory."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentkv import parse_tool_calls
from agentkv.errors import InputError
from agentkv.evals.event_log import read_record
from agentkv.evals.simulator.agents import NO_COMMAND, Replies
from agentkv.evals.simulator.alone import alone_s
from agentkv.evals.simulator.cost import StepBatch
from agentkv.evals.simulator.machine import Limits, Machine, make_machine
from agentkv.evals.simulator.run import SimulatedRun, Simulation
from agentkv.evals.workload.plans import Workload
from agentkv.guard import MAX_ANSWER_S
from agentkv.policies.agentkv import AgentKVPolicy

from .simulated import durations, job, machine, random_jobs, simulate

POLICIES = (
    "fcfs",
    "continuum",
    "continuum:released",
    "context_serve",
    "fcfs@infinite",
    "fcfs+offload",
    "continuum+offload",
)
BUSY = random_jobs(30)
"""More than the pool of `machine()` holds at once: turns wait, are evicted and preempted."""


@cache
def busy(policy: str) -> tuple[Simulation, SimulatedRun]:
    """What comes of it, played once for each policy."""
    return simulate(BUSY, policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_jobs_blocks_and_seconds_are_accounted_for(policy: str) -> None:
    """Every job ends once with all turns, all blocks are free, parts add up to durations, and what
    was not cached is computed once, but for preempted turns."""
    simulation, run = busy(policy)
    plans = {plan.job_id: plan for plan in BUSY.jobs}
    assert sorted(job.job_id for job in run.jobs) == sorted(plans)
    for outcome in run.jobs:
        plan = plans[outcome.job_id]
        assert outcome.status == "done"
        assert [(turn.prompt_tokens, turn.output_tokens) for turn in outcome.turns] == [
            (plan.prompt_tokens(number), turn.output_tokens)
            for number, turn in enumerate(plan.turns)
        ]
        assert abs(outcome.parts["other_s"]) < 0.001
        assert outcome.parts["tools_s"] == pytest.approx(sum(turn.tool_s for turn in plan.turns))
    engine = simulation.engine
    assert engine.num_free_blocks == simulation.machine.num_blocks - 1
    assert not engine.turns
    retention = getattr(engine.scheduler, "retention", None)
    assert retention is None or len(retention.pins) == len(retention.jobs) == 0
    needed = sum(
        turn.prompt_tokens - turn.cached_tokens + turn.output_tokens - 1
        for job in run.jobs
        for turn in job.turns
    )
    assert run.counters["computed_tokens"] >= needed
    assert run.counters["computed_tokens"] == needed or run.counters["preemptions"]


@pytest.mark.parametrize("policy", POLICIES)
def test_jumps_change_nothing(policy: str) -> None:
    """Jumps give every job the duration of single steps, to rounding, in fewer steps."""
    _, jumping = busy(policy)
    _, stepping = simulate(BUSY, policy, has_jumps=False)
    assert durations(jumping) == pytest.approx(durations(stepping), rel=0, abs=1e-9)
    for name in ("computed_tokens", "recomputed_tokens", "preemptions", "reloaded_tokens"):
        assert jumping.counters[name] == stepping.counters[name]
    assert jumping.counters["steps"] < stepping.counters["steps"]
    assert stepping.counters["jumps"] == 0


@pytest.mark.parametrize("policy", ["fcfs", "agentkv"])
def test_recurrent_states_take_blocks_and_jumps_change_nothing(policy: str) -> None:
    """With recurrent layers jumps are exact, too, and a pool that was enough is short."""
    on = replace(machine(300), num_state_groups=1)
    _, jumping = simulate(BUSY, policy, on)
    simulation, stepping = simulate(BUSY, policy, on, has_jumps=False)
    assert durations(jumping) == pytest.approx(durations(stepping), rel=0, abs=1e-9)
    for name in ("computed_tokens", "recomputed_tokens", "preemptions"):
        assert jumping.counters[name] == stepping.counters[name]
    assert jumping.counters["steps"] < stepping.counters["steps"]
    assert simulation.engine.num_free_blocks == on.num_blocks - 1
    _, plain = simulate(BUSY, policy, machine(300))
    assert stepping.counters["recomputed_tokens"] > plain.counters["recomputed_tokens"]


@pytest.mark.parametrize("model", ["qwen3-next-80b", "qwen3.5-27b"])
def test_a_hybrid_models_job_finds_whole_blocks_alone(model: str) -> None:
    """It finds the whole blocks of the prompt before, none of a reply, and takes `alone_s`."""
    limits = Limits(num_gpus=2, num_blocks=80, max_num_batched_tokens=1000)
    on = make_machine("h200", model, limits)
    size = on.block_tokens
    plan = job("alone", 1.0, (5 * size + 9, size, 0.7), (17, 1, 3.0), (300, 50, 0.0))
    _, run = simulate(Workload("one", 0, (plan,), None), "agentkv", on)
    found = [turn.cached_tokens for turn in run.jobs[0].turns]
    assert found == [0, 5 * size, 6 * size]
    assert run.counters["recomputed_tokens"] == 0
    junction_s = on.cost.step_s(StepBatch.of_prefill(size, 5 * size))
    assert run.jobs[0].duration_s == pytest.approx(alone_s(plan, on), abs=junction_s)


class Slow(AgentKVPolicy):
    """The default rules, but for one answer that takes too long."""

    tick_s = 1e9  # once

    def tick(self) -> bool:
        time.sleep(1.5 * MAX_ANSWER_S)
        return False


def test_a_busy_machine_changes_no_result() -> None:
    """An answer that comes late in real time is no fault where time is virtual."""
    _, run = simulate(BUSY, f"{__name__}:Slow")
    assert run.counters.get("policy_faults_total", 0) == 0


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    num_blocks=st.integers(170, 400),
    policy=st.sampled_from(POLICIES),
    max_num_seqs=st.sampled_from((2, 8, 64)),
)
def test_any_load_ends_with_everything_free(
    seed: int, num_blocks: int, policy: str, max_num_seqs: int
) -> None:
    """With random jobs, pools and policies all jobs are done, and all blocks free at the end."""
    workload = random_jobs(12, seed=seed, span_s=1.0)
    simulation, run = simulate(workload, policy, machine(num_blocks, max_num_seqs=max_num_seqs))
    assert {job.status for job in run.jobs} == {"done"}
    assert simulation.engine.num_free_blocks == simulation.machine.num_blocks - 1
    assert all(abs(job.parts["other_s"]) < 0.001 for job in run.jobs)


@pytest.mark.parametrize("policy", ["fcfs", "continuum", "context_serve"])
def test_a_job_alone_takes_what_the_cost_model_says(policy: str) -> None:
    """A job alone takes exactly `alone_s`, on which slowdowns are based."""
    plan = job("alone", 1.0, (5000, 30, 0.7), (17, 1, 3.0), (300, 50, 0.0))
    on = machine(1000)
    _, run = simulate(Workload("one", 0, (plan,), None), policy, on)
    assert run.jobs[0].duration_s == pytest.approx(alone_s(plan, on), abs=1e-9)


def test_scarce_memory_costs_fcfs_what_pins_save() -> None:
    """With scarce memory fcfs recomputes more than pins, a tier or an unlimited pool."""
    recomputed = {}
    for policy in ("fcfs", "continuum:released", "fcfs+offload", "fcfs@infinite"):
        _, run = simulate(random_jobs(60, span_s=4.0), policy, machine(400))
        recomputed[policy] = run.counters["recomputed_tokens"]
        assert "@infinite" not in policy or run.counters["preemptions"] == 0
    assert recomputed["fcfs"] > recomputed["continuum:released"] > recomputed["fcfs@infinite"] == 0
    assert recomputed["fcfs"] > recomputed["fcfs+offload"]


def test_a_context_the_server_does_not_take_fails_its_job() -> None:
    """A context beyond the server's limit fails its job alone and leaves no block behind."""
    long, short = job("long", 0.0, (100, 5, 0.1), (9000, 5, 0.0)), job("short", 0.0, (10, 5, 0.0))
    simulation, run = simulate(Workload("two", 0, (long, short), None), "continuum", machine(50))
    by_id = {job.job_id: job for job in run.jobs}
    assert (by_id["long"].status, by_id["short"].status) == ("failed", "done")
    error = by_id["long"].turns[-1].error
    assert error is not None
    assert "the server takes 784" in error
    assert simulation.engine.num_free_blocks == 49


def test_a_closed_loop_keeps_so_many_jobs_running() -> None:
    """In a closed loop the next job arrives when one ends."""
    jobs = tuple(job(f"job-{number}", 0.0, (50, 5, 0.2), (50, 5, 0.0)) for number in range(6))
    _, run = simulate(Workload("loop", 0, jobs, 2), "fcfs")
    arrivals = sorted(job.arrived_s for job in run.jobs)
    ends = sorted(job.ended_s for job in run.jobs)
    assert arrivals == [0.0, 0.0, *ends[:4]]


PATIENCE_S = 1.0


def test_no_later_job_goes_before_a_turn_that_has_waited_for_the_patience(tmp_path: Path) -> None:
    """After the patience no turn of a later job starts first, though many turns wait for longer;
    first turns are held against other first turns."""
    policy = f"agentkv{json.dumps({'patience_s': PATIENCE_S})}"
    _, run = simulate(random_jobs(60, seed=1), policy, machine(120), record_events=100_000)
    path = tmp_path / "timestamps.json"
    path.write_text(json.dumps(run.record))
    events = run.record["jobs"].items()
    due = {job_id for job_id, told in events if any(each["event"] == "due" for each in told)}
    started = [
        (turn.started_s, turn.arrived_s + PATIENCE_S, job.started_s, turn, job.job_id in due)
        for job in read_record(str(path)).jobs
        for turn in job.turns
        if turn.started_s is not None
    ]
    num_overdue = {True: 0, False: 0}
    for started_s, overdue_s, known_s, turn, _ in started:
        num_overdue[turn.is_later] += started_s > overdue_s
        assert not [
            other
            for other_s, _, other_known_s, other, is_due in started
            if overdue_s < other_s < started_s
            and other_known_s > known_s
            and not (is_due and not other.is_later)
            and (turn.is_later or not other.is_later)
        ]
    assert min(num_overdue.values()) >= 5


@given(st.lists(st.sampled_from(["ls", "cat a.py", "pytest -q && echo done", "grep -rn 'x' ."])))
def test_a_reply_reads_as_its_command(commands: list[str]) -> None:
    """A reply reads as its command, which has one token; a last reply contains no tool call."""
    replies = Replies()
    tokens = [replies.token_of(command) for command in commands]
    for command, token in zip(commands, tokens, strict=True):
        [call] = parse_tool_calls(replies.decode([token] * 3))
        assert call.command == command
        assert replies.token_of(command) == token
    assert replies.token_of("") == NO_COMMAND
    assert parse_tool_calls(replies.decode([NO_COMMAND])) == []


LOADS = {"heavy": 10.0, "light": 1.0}


HUGE = Workload("huge", 0, (job("a", 0.0, (100_000_000, 1, 0.0)),) * 2, None)


@pytest.mark.parametrize(
    ("workload", "policy", "on", "message"),
    [
        (BUSY, "fcfs+offload", replace(machine(), num_state_groups=1), "recurrent states"),
        (BUSY, "fcfs+offload", replace(machine(), block_bytes=0), "kv_token_bytes"),
        (HUGE, "fcfs@infinite", machine(), "blocks for all contexts"),
    ],
    ids=["a tier without states", "a profile without the size of KV", "an endless pool"],
)
def test_what_cannot_be_simulated_is_refused(
    workload: Workload, policy: str, on: Machine, message: str
) -> None:
    """Played as it is, it would hit too much, or never end."""
    with pytest.raises(InputError, match=message):
        simulate(workload, policy, on)
