"""The promises of policies, on vLLM's real scheduler: ours keep them, bad ones are found out."""

from __future__ import annotations

import pytest

from agentkv.evals.commands.policy import STOCK, read_target
from agentkv.testing.policy_play import (
    ENDS,
    IN_TIME,
    NO_LOSS,
    PROMISES,
    SAME,
    USABLE,
    WAITS,
    YIELDS,
)
from agentkv.testing.promises import BrokenPromiseError, CheckResult, check_promises, promises_of

BAD_POLICIES = "tests.testing.bad_policies"
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
"""Policy of bad_policies.py, and the promise that it breaks."""


@pytest.mark.parametrize("name", [*OURS, f"{BAD_POLICIES}:Holds"])
def test_our_policies_keep_every_promise(name: str) -> None:
    """Nothing is found against any shipped policy, nor against one that only holds pins."""
    result = check_promises(read_target(name)[1], seed_number=3, num_schedules=12)
    assert result.broken == {}
    assert result.num_turns > 12 < result.num_answers


@pytest.mark.parametrize(("name", "promise"), BAD.items())
def test_a_bad_policy_is_found_out(name: str, promise: str) -> None:
    """The promise that it breaks is named, with a schedule that shows it."""
    settings = read_target(f"{BAD_POLICIES}:{name}")[1]
    result = check_promises(
        settings, seed_number=0, num_schedules=100, max_hang_s=0.3, max_shrink_s=1.0
    )
    assert result.broken.keys() == {promise}
    assert result.broken[promise].schedule[0].startswith("an engine of ")


@pytest.mark.parametrize(
    ("name", "promise", "what"),
    [
        ("FailsToPredict", USABLE, "predict raised KeyError"),
        ("PredictsForever", IN_TIME, "predict: no answer after 0.3 s"),
    ],
)
def test_a_bad_predictor_is_found_out(name: str, promise: str, what: str) -> None:
    """A policy is checked with the predictor that its settings name, which is broken off, too."""
    settings = {"policy": "agentkv", "predictor": f"{BAD_POLICIES}:{name}"}
    result = check_promises(
        settings, seed_number=0, num_schedules=10, max_hang_s=0.3, max_shrink_s=1.0
    )
    assert result.broken.keys() == {promise}
    assert f"the predictor: {what}" in result.broken[promise].what


def test_each_promise_has_a_policy_that_breaks_it() -> None:
    """No promise is kept by every planted policy, but that turns end: vLLM itself sees to it."""
    assert {*BAD.values(), ENDS} == set(PROMISES)


def test_a_seed_makes_the_same_schedules() -> None:
    """Two checks with one seed play the same turns, with another seed others."""

    def played(seed_number: int) -> tuple[int, int]:
        result = check_promises({"policy": STOCK}, seed_number=seed_number, num_schedules=4)
        return result.num_turns, result.num_answers

    assert played(1) == played(1) != played(2)


def test_a_schedule_can_be_played_by_hand() -> None:
    """The steps that hypothesis prints for a failed test are calls that show the fault."""
    state = promises_of({"policy": f"{BAD_POLICIES}:ForgetsToYield"})()
    state.engine_starts(num_blocks=14)
    for job in ("a", "b"):
        state.turn_arrives(job, new_tokens=100, output_tokens=4)
        state.time_passes(0.3)
    state.turn_arrives("c", new_tokens=160, output_tokens=40)
    with pytest.raises(BrokenPromiseError, match=YIELDS) as raised:
        state.time_passes(1.0)
    assert raised.value.schedule[-1] == "1 s pass"
    state.teardown()


def test_the_smaller_example_is_kept() -> None:
    """Fewer events count before fewer letters."""
    result = CheckResult()
    for schedule in (("an engine", "b", "c"), ("an engine", "a long event"), ("a", "b", "c")):
        result.add(BrokenPromiseError(ENDS, "planted", schedule))
    assert result.broken[ENDS].schedule == ("an engine", "a long event")
