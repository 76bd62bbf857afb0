"""What workloads consist of besides turns: prefixes, children, pauses, people, steps."""

from dataclasses import replace

import pytest

from agentkv.evals.outcomes import JobOutcome, RunOutcome, summarize
from agentkv.evals.simulator.alone import alone_s
from agentkv.evals.simulator.run import SimulatedRun
from agentkv.evals.simulator.turns import ContextHashes
from agentkv.evals.workload.plans import JobPlan, Prefix, TurnPlan, Workload, with_children
from agentkv.evals.workload.workloads import make_workload

from .simulated import job, machine, simulate

POLICIES = ("fcfs", "continuum", "context_serve", "agentkv")


def run_of(*plans: JobPlan, policy: str = "agentkv", num_blocks: int = 1000) -> SimulatedRun:
    workload = Workload("made", 0, plans, None)
    return simulate(workload, policy, machine(num_blocks), record_events=10_000)[1]


def outcome(run: SimulatedRun, job_id: str) -> JobOutcome:
    return next(job for job in run.jobs if job.job_id == job_id)


def prefixed(plan: JobPlan, *prefixes: Prefix) -> JobPlan:
    return replace(plan, prefixes=prefixes)


def parent(*children: JobPlan, tool_s: float = 0.0) -> JobPlan:
    """A job of two turns, the first of which starts the children."""
    fan_out = TurnPlan(100, 10, "run_subagents", tool_s, children=children)
    return JobPlan("parent", 0.0, (fan_out, TurnPlan(50, 10, "", 0.0)))


def child(number: int, *turns: tuple[int, int, float]) -> JobPlan:
    return replace(job(f"parent.{number}", 0.0, *turns), role="sub-agent")


def test_blocks_of_a_prefix_have_the_same_names_in_all_jobs() -> None:
    """Whole blocks of a common prefix are equal, nested prefixes too, and nothing else is; a longer
    context begins with the names of a shorter one."""
    tools, group = Prefix("tools", 100), Prefix("group 1", 200)
    one = ContextHashes(1, 16, (tools, group)).up_to(320)
    same = ContextHashes(2, 16, (tools, group)).up_to(320)
    other = ContextHashes(3, 16, (tools, Prefix("group 2", 200))).up_to(320)
    assert [a == b for a, b in zip(one, same, strict=True)] == [True] * 12 + [False] * 8
    assert [a == b for a, b in zip(one, other, strict=True)] == [True] * 6 + [False] * 14
    assert len(set(one)) == 20
    hashes = ContextHashes(1, 16)
    assert hashes.up_to(320, skip=6) == hashes.up_to(320)[6:]
    assert hashes.up_to(100) == hashes.up_to(320)[:6]
    assert not {*hashes.up_to(320)} & {*one[:12], *ContextHashes(2, 16).up_to(320)}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_prefix_that_another_job_computed_is_found(policy: str) -> None:
    """The second job's first turn finds the whole blocks of the prefix, the first job's none."""
    plans = (job("a", 0.0, (500, 5, 0.0)), job("b", 9.0, (600, 5, 0.0)))
    run = run_of(*(prefixed(plan, Prefix("tools", 410)) for plan in plans), policy=policy)
    assert outcome(run, "a").turns[0].cached_tokens == 0
    assert outcome(run, "b").turns[0].cached_tokens == 400
    assert run.counters["recomputed_tokens"] == 0


def test_a_prefix_that_was_evicted_counts_as_computed_again() -> None:
    """If the pool has forgotten a prefix, its whole blocks are counted as recomputed."""
    plans = [job("a", 0.0, (500, 5, 0.0)), job("b", 20.0, (600, 5, 0.0))]
    flood = [job(f"flood-{number}", 5.0 + number, (700, 5, 0.0)) for number in range(4)]
    plans = [prefixed(plan, Prefix("tools", 400)) for plan in plans]
    run = run_of(*plans, *flood, policy="fcfs", num_blocks=60)
    assert outcome(run, "b").turns[0].cached_tokens == 0
    assert run.counters["recomputed_tokens"] == 400


@pytest.mark.parametrize("policy", POLICIES)
def test_a_parent_goes_on_when_its_last_child_has_ended(policy: str) -> None:
    """Children start with the end of the parent's turn; their time is that of the parent's tool."""
    quick, slow = child(1, (200, 5, 0.1), (20, 5, 0.0)), child(2, (200, 5, 3.0), (20, 5, 0.0))
    run = run_of(parent(quick, slow), policy=policy)
    first, second = outcome(run, "parent").turns
    ends_s = [outcome(run, each.job_id).ended_s for each in (quick, slow)]
    assert {outcome(run, each.job_id).arrived_s for each in (quick, slow)} == {first.ended_s}
    assert second.sent_s == max(ends_s) == first.ended_s + first.tool_s
    assert {job.status for job in run.jobs} == {"done"}


def test_a_child_is_a_job_of_its_parent_to_the_server() -> None:
    """A child has an event log of its own and is released; the parent's tool lasts as long."""
    run = run_of(parent(child(1, (200, 5, 1.0), (20, 5, 0.0))))
    assert run.record is not None
    events = run.record["jobs"]
    assert events["parent.1"][-1]["event"] == "closed"
    [finished] = [event for event in events["parent"] if event["event"] == "tool_finished"]
    first = outcome(run, "parent").turns[0]
    assert (finished["command"], finished["duration_s"]) == ("run_subagents", first.tool_s)


def test_a_job_alone_waits_for_its_slowest_child() -> None:
    """A job with one child takes exactly `alone_s`; of several the longest counts."""
    slow = child(1, (200, 5, 3.0), (20, 5, 0.0))
    run, on = run_of(parent(slow), policy="continuum"), machine(1000)
    assert outcome(run, "parent").duration_s == pytest.approx(alone_s(parent(slow), on))
    quick = child(2, (200, 5, 0.0))
    assert alone_s(parent(quick, slow), on) == alone_s(parent(slow), on)


def test_a_failed_child_does_not_stop_its_parent() -> None:
    """A child beyond the longest context fails alone."""
    run = run_of(parent(child(1, (90_000, 5, 0.0))), num_blocks=50)
    assert (outcome(run, "parent.1").status, outcome(run, "parent").status) == ("failed", "done")


def test_sub_agents_are_part_of_a_job_in_the_summary() -> None:
    """Numbers of jobs and durations count the parent alone, tokens count all."""
    run = run_of(parent(child(1, (200, 5, 0.1), (20, 5, 0.0)), child(2, (200, 5, 0.0))))
    summary = summarize(RunOutcome("agentkv", {}, run.jobs, run.counters))
    assert (summary["jobs"], summary["completed"], summary["sub_agents"]) == (1, 1, 2)
    assert summary["job_durations"] == [outcome(run, "parent").duration_s]
    assert summary["output_tokens"] == 35


def chat(job_id: str, arrival_s: float, pause_s: float) -> JobPlan:
    turns = (TurnPlan(100, 10, "", 0.0, pause_s=pause_s), TurnPlan(50, 10, "", 0.0))
    return JobPlan(job_id, arrival_s, turns, role="chat")


def test_a_person_pauses_and_sends_no_tags() -> None:
    """The pause is between the turns and no tool's; the server knows of no job."""
    run = run_of(chat("chat", 0.0, 30.0))
    first, second = outcome(run, "chat").turns
    assert first.tool_s == 0.0
    assert second.sent_s == pytest.approx(first.ended_s + 30.0)
    assert run.record == {"jobs": {}}
    assert not run.counters.get("inferred_jobs_total")


def test_conversations_have_numbers_of_their_own() -> None:
    """A conversation is no job in the summary, and its times to first token are apart."""
    run = run_of(chat("chat", 0.0, 1.0), job("a", 0.0, (50, 5, 0.0)))
    summary = summarize(RunOutcome("agentkv", {}, run.jobs, run.counters))
    assert (summary["jobs"], summary["chats"], summary["chat_turns"]) == (1, 1, 2)
    waits_s = [turn.to_first_token_s for turn in outcome(run, "chat").turns]
    assert summary["chat_ttft_max_s"] == max(waits_s)
    assert summary["output_tokens"] == 25


def test_a_step_starts_when_the_last_of_the_step_before_has_ended() -> None:
    """Of ten samples, four at a time, all of a step start together."""
    turns = [(50 * (number + 1), 5, 0.0) for number in range(10)]
    samples = tuple(
        replace(job(str(number), 0.0, turn), role="sample") for number, turn in enumerate(turns)
    )
    _, run = simulate(Workload("steps", 0, samples, 4, steps="synchronous"), "agentkv")
    steps = [[outcome(run, str(n)) for n in group] for group in (range(4), range(4, 8), (8, 9))]
    starts_s = [{job.arrived_s for job in step} for step in steps]
    ends_s = [max(job.ended_s for job in step) for step in steps]
    assert starts_s == [{0.0}, {ends_s[0]}, {ends_s[1]}]
    summary = summarize(RunOutcome("agentkv", {"concurrency": 4}, run.jobs, run.counters))
    assert summary["steps"] == 3
    assert summary["step_mean_s"] == pytest.approx(ends_s[2] / 3)


def test_an_update_of_the_weights_takes_the_kv_of_partial_rollouts() -> None:
    """Of two at once, one ends a step: the other's turn is computed again, and finds no prefix."""
    short, long = job("0", 0.0, (320, 5, 0.0)), job("1", 0.0, (320, 400, 0.1), (32, 5, 0.0))
    samples = tuple(replace(sample, role="sample") for sample in (short, long))
    hits, computed = [], []
    for steps in ("partial", None):
        _, run = simulate(Workload("steps", 0, samples, 2, steps), "agentkv")
        hits.append(outcome(run, "1").turns[1].cached_tokens)
        computed.append(run.counters["computed_tokens"])
        assert run.counters["recomputed_tokens"] == 0
    assert hits[0] == hits[1] == 704
    assert computed[0] > computed[1] + 320
    workload = {"jobs_per_step": 1}
    summary = summarize(RunOutcome("agentkv", workload, run.jobs, run.counters))
    assert summary["steps"] == 2


@pytest.mark.parametrize("policy", ["fcfs", "agentkv"])
@pytest.mark.parametrize(
    "name", ["deep-research", "coding", "mixed", "rollouts", "partial-rollouts"]
)
def test_a_named_workload_ends_with_everything_free(name: str, policy: str) -> None:
    """In a scarce pool all jobs are done at the end, and all blocks free."""
    workload = make_workload(name, seed=1, num_jobs=8, concurrency=4, token_scale=0.1)
    simulation, run = simulate(workload, policy, machine(700))
    assert len(run.jobs) == len(list(with_children(workload.jobs)))
    assert {job.status for job in run.jobs} == {"done"}
    assert simulation.engine.num_free_blocks == simulation.machine.num_blocks - 1


def test_a_prompt_that_broke_hits_what_it_kept() -> None:
    """A turn that kept 320 of 1,000 tokens hits those, and the next one the new context."""
    whole = job("a", 0.0, (900, 100, 0.1), (600, 50, 0.1), (100, 10, 0.0))
    turns = (whole.turns[0], replace(whole.turns[1], kept_tokens=320), whole.turns[2])
    plans = Workload("broken", 0, (replace(whole, turns=turns),), None)
    _, run = simulate(plans, "agentkv", machine(400))
    (outcome,) = run.jobs
    assert [turn.prompt_tokens for turn in outcome.turns] == [900, 920, 1070]
    assert [turn.cached_tokens for turn in outcome.turns] == [0, 320, 960]
