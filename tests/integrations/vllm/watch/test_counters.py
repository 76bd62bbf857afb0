"""What the engine counts of turns and predictions: the numbers behind the Grafana dashboard."""

from typing import Any

import pytest

from agentkv.integrations.vllm.api import engine_side
from agentkv.integrations.vllm.watch.counters import LAST_LABELLED, TURN_LABELS
from tests.integrations.vllm.harness import Engine
from tests.stepped_engine import prompt_of


def test_turns_are_counted_in_five_ranges() -> None:
    """However long a job is, its turns fall in one of five ranges."""
    labels = [TURN_LABELS[min(turn, LAST_LABELLED)] for turn in (0, 1, 2, 3, 5, 6, 10, 11, 99)]
    assert labels == ["1", "1", "2", "3-5", "3-5", "6-10", "6-10", "11+", "11+"]


def test_prompts_and_hits_are_counted_by_turn() -> None:
    """A second turn's prompt counts as such, and what it found in the cache as a hit."""
    engine = Engine()
    history = engine.turn(prompt_of(100), job_id="a")
    engine.turn(history + prompt_of(50, salt=7), job_id="a")
    totals = engine.totals
    assert totals["prompt_tokens_total"] == {"1": 100, "2": 154}
    assert totals["hit_tokens_total"] == {"1": 0, "2": 96}


def test_waits_are_observed_apart_for_turns_that_open_a_job() -> None:
    """One histogram holds the first turns' waits, another those of all later turns."""
    engine = Engine()
    history = engine.turn(prompt_of(40), job_id="a")
    engine.add(history + prompt_of(20, salt=7), job_id="a")
    engine.add(prompt_of(20, salt=8), job_id="b")
    engine.scheduler.schedule()
    observed = engine.scheduler.watchers.counters.take_delta()["observations"]
    assert len(observed["continuing_turn_wait_seconds"]) == 1
    assert len(observed["first_turn_wait_seconds"]) == 1


def test_times_to_the_first_token_and_to_the_end_are_added_up() -> None:
    """From a turn's arrival: 3 s of waiting and a step of 0.01 s, then a step for each token; turns
    that open a job apart from others."""
    engine = Engine()
    engine.add(prompt_of(40), job_id="a", max_tokens=5)
    engine.clock.now_s += 3.0
    engine.run()
    engine.turn(prompt_of(80), job_id="a", max_tokens=1)
    totals = engine.totals
    assert totals["finished_turns_total"] == {"first": 1, "later": 1}
    assert totals["output_tokens_total"] == {"first": 5, "later": 1}
    assert totals["ttft_seconds_total"] == pytest.approx({"first": 3.01, "later": 0.01})
    assert totals["turn_seconds_total"] == pytest.approx({"first": 3.05, "later": 0.01})


@pytest.mark.parametrize(
    ("command", "duration_s", "counted"),
    [
        ("ls -la", 0.0001, {"to_p50": 1}),
        ("ls -la", 3600.0, {"over_p90": 1}),
        ("make", 3600.0, {}),
    ],
)
def test_a_prediction_is_compared_with_the_duration_of_its_own_command(
    command: str, duration_s: float, counted: dict[str, int]
) -> None:
    """The duration of another command than the predicted one says nothing about the prediction."""
    engine = Engine(policy="context_serve")
    engine.turn(prompt_of(100), reply="```bash\nls -la\n```", job_id="a")
    event: dict[str, Any] = {"state": "finished", "command": command, "duration_s": duration_s}
    engine_side.call(engine.scheduler, "tool", ["a", event])
    totals = engine.totals
    assert totals.get("predictions_total", {}) == counted


def test_an_idle_engine_is_not_under_pressure() -> None:
    """The gauge is 1 while a turn waits for memory, and 0 once nothing is in the engine."""
    engine = Engine(policy="agentkv", num_blocks=16)
    for job in ("a", "b"):
        engine.add(prompt_of(200, salt=ord(job)), job_id=job, max_tokens=20)
    seen = set()
    while engine.scheduler.has_requests():
        engine.step()
        stats = engine.scheduler.make_stats()
        seen.add(stats.agentkv["gauges"]["under_pressure"])
    assert 1 in seen
    assert engine.scheduler.make_stats().agentkv["gauges"]["under_pressure"] == 0
