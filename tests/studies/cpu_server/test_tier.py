"""The table of the study of a KV tier on the CPU server, from runs made by hand."""

from __future__ import annotations

from agentkv.evals.outcomes import RunOutcome
from studies.cpu_server.tier import differing, table_rows
from tests.evals.made_runs import job, run, turn

SIMULATED = {"fcfs+offload": {"mean_s": 10.0}, "agentkv+offload": {"mean_s": 5.0}}


def run_of(policy: str, repeat: int, took_s: float, digest: str = "same") -> RunOutcome:
    """A job of one turn that takes `took_s`."""
    only = job(num_turns=1, ended_s=took_s, turns=(turn(ended_s=took_s, output_digest=digest),))
    return run(only, policy=policy, metadata={"repeat": repeat})


FOUND = {
    "none": [run_of("fcfs", 1, 10.0), run_of("fcfs", 2, 20.0)],
    "fast": [run_of("fcfs", 1, 8.0), run_of("agentkv", 1, 4.0), run_of("agentkv", 2, 5.0, "other")],
}


def test_a_ratio_compares_runs_of_the_same_repeat() -> None:
    """`agentkv` is compared with stock without a tier, and with stock and the same tier as far as
    that has run; the simulator's time is set next to each repeat's, its ratio has the tier, too."""
    _, ours = table_rows("fast", FOUND, SIMULATED)
    assert ours[:3] == ["fast", "agentkv", "2"]
    assert ours[3:6] == ["4.5 (4.0-5.0)", "0.33 (0.25-0.40)", "0.50 (0.50-0.50)"]
    assert ours[-3:] == ["5.0", "1.12 (1.00-1.25)", "0.50"]


def test_a_table_without_stock_has_no_ratios() -> None:
    """A study of one tier and one policy is possible."""
    [ours] = table_rows("fast", {"fast": FOUND["fast"][1:]}, SIMULATED)
    assert ours[4:6] == ["-", "-"]


def test_turns_with_another_output_than_the_first_run_are_counted() -> None:
    """Greedy output is compared over tiers, policies and repeats."""
    assert differing(FOUND) == {"none": 0, "fast": 1, "compared": 5}
