"""`agentkv policy check` on vLLM's real scheduler: our policies pass, bad ones are found out."""

from __future__ import annotations

import random

import pytest

from agentkv.evals import promises
from agentkv.evals.commands.policy import read_target
from agentkv.evals.promises import ENDS, IN_TIME, NO_LOSS, SAME, USABLE, WAITS, YIELDS
from agentkv.evals.schedules import Arrival, Pass, Rush, Schedule, Shape, random_schedule, shrink

OURS = ("fcfs", "continuum:paper", "continuum:released", "context_serve", "agentkv")
BAD = {
    "CannotBeMade": USABLE,
    "Raises": USABLE,
    "AnswersNonsense": USABLE,
    "LoopsForever": IN_TIME,
    "AsksSomebodyElse": IN_TIME,
    "ForgetsToYield": YIELDS,
    "ServesTheNewestFirst": WAITS,
    "NeverOpensItsGate": WAITS,
    "RollsDice": SAME,
    "LeaksThroughATier": NO_LOSS,
}
"""Policy of tests/evals/bad_policies.py, and the promise that it breaks."""


@pytest.mark.parametrize("name", [*OURS, "tests.evals.bad_policies:Holds"])
def test_our_policies_keep_every_promise(name: str) -> None:
    """Nothing is found against any shipped policy, nor against one that only holds pins."""
    result = promises.check_promises(read_target(name)[1], seed=3, num_schedules=12)
    assert result.findings == {}
    assert result.num_turns > 12 < result.num_answers


@pytest.mark.parametrize(("name", "promise"), BAD.items())
def test_a_bad_policy_is_found_out(
    name: str, promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The promise that it breaks is named, with a schedule of a few events that shows it."""
    if name == "LoopsForever":  # a score of plays, each broken off
        monkeypatch.setattr(promises, "MAX_HANG_S", 0.3)
    settings = read_target(f"tests.evals.bad_policies:{name}")[1]
    for number in range(60):
        result = promises.check_promises(settings, seed=number, num_schedules=1)
        if result.findings:
            break
    assert result.findings.keys() == {promise}
    assert len(result.findings[promise].schedule.events) <= 8


@pytest.mark.parametrize(
    ("name", "promise", "what"),
    [
        ("FailsToPredict", USABLE, "predict raised KeyError"),
        ("PredictsForever", IN_TIME, "predict: no answer after 1 s"),
    ],
)
def test_a_bad_predictor_is_found_out(
    name: str, promise: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy is checked with the predictor that its settings name, which is broken off, too."""
    monkeypatch.setattr(promises, "MAX_SHRINK_PLAYS", 2)  # each play takes seconds
    settings = {"policy": "agentkv", "predictor": f"tests.evals.bad_policies:{name}"}
    result = promises.check_promises(settings, seed=0, num_schedules=1)
    assert result.findings.keys() == {promise}
    assert f"the predictor: {what}" in result.findings[promise].breach.what


def test_each_promise_has_a_policy_that_breaks_it() -> None:
    """No promise is kept by every planted policy, but that turns end: vLLM itself sees to it."""
    assert {*BAD.values(), ENDS} == set(promises.PROMISES)


def test_a_seed_makes_the_same_schedules() -> None:
    """Two generators with one seed make one schedule, with another seed another one."""
    made = [random_schedule(random.Random(seed)) for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]


def test_a_schedule_shrinks_to_what_shows_the_fault() -> None:
    """Events and values that are not needed go; each line of the rest says one thing."""
    arrival = Arrival("a", 130, 30, "ls", is_last_step=True)
    schedule = Schedule(
        Shape(num_blocks=20, has_tier=True, is_async=True),
        (Pass(3.0), arrival, Rush(), Arrival(None, 90, 5), Pass(30.0)),
    )
    smallest = shrink(
        schedule,
        lambda each: any(isinstance(event, Arrival) and event.job == "a" for event in each.events),
    )
    assert smallest.lines() == [
        "20 blocks, 4 requests at once, 512 tokens a step, sync scheduling",
        "a turn of job a arrives: 20 tokens, writes 4",
    ]
