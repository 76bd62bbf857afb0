"""The books of a job: numbers, retries, tools and gaps, on a clock moved by hand."""

from __future__ import annotations

import pytest

from agentkv.client.ledger import ToolTime, TurnLedger
from agentkv.client.replies import Usage


class HandClock:
    """A clock that stands still unless moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def ledger(clock: HandClock) -> TurnLedger:
    return TurnLedger("job", clock=clock)


def take_turn(ledger: TurnLedger, clock: HandClock, seconds: float = 1.0) -> int:
    turn = ledger.begin()
    clock.now_s += seconds
    ledger.finish(turn, Usage(100, 80, 5), ended_at_s=clock.now_s)
    return turn.number


def test_turns_are_numbered_from_one(ledger: TurnLedger, clock: HandClock) -> None:
    """Each request is a new turn."""
    assert [take_turn(ledger, clock) for _ in range(3)] == [1, 2, 3]


def test_turns_at_once_have_numbers_of_their_own(ledger: TurnLedger) -> None:
    """Sub-agents and gathered calls never share a number."""
    assert [ledger.begin().number for _ in range(3)] == [1, 2, 3]


def test_a_failed_turn_gives_its_number_to_the_next_request(ledger: TurnLedger) -> None:
    """The server takes the repeated number for a retry."""
    ledger.fail(ledger.begin())
    assert ledger.begin().number == 1


def test_a_failed_turn_that_was_overtaken_leaves_a_hole(ledger: TurnLedger) -> None:
    """A later number is out already and must not come twice."""
    first, _second = ledger.begin(), ledger.begin()
    ledger.fail(first)
    assert ledger.begin().number == 3


def test_a_retry_carries_what_the_failed_turn_carried(ledger: TurnLedger) -> None:
    """Neither the tool's time nor the last step is lost with a failed request."""
    ledger.begin_tool()
    ledger.finish_tool("pytest", 7.0)
    ledger.mark_last_step()
    ledger.fail(ledger.begin())
    turn = ledger.begin()
    assert turn.last_tool == ToolTime("pytest", 7.0)
    assert turn.is_last_step


def test_a_tool_is_carried_by_the_next_turn_alone(ledger: TurnLedger, clock: HandClock) -> None:
    """Once told, it is not told again."""
    ledger.begin_tool()
    ledger.finish_tool("ls", 0.5)
    assert ledger.begin().last_tool == ToolTime("ls", 0.5)
    assert ledger.begin().last_tool is None


def test_of_several_tools_the_longest_is_carried(ledger: TurnLedger) -> None:
    """The pin had to last that long."""
    for text, duration_s in (("ls", 0.1), ("make", 9.0), ("cat x", 0.2)):
        ledger.begin_tool()
        ledger.finish_tool(text, duration_s)
    assert ledger.begin().last_tool == ToolTime("make", 9.0)
    assert ledger.summary().tool_s == pytest.approx(9.3)
    assert ledger.summary().tool_calls == 3


def test_the_time_between_turns_is_a_gap(ledger: TurnLedger, clock: HandClock) -> None:
    """From the end of a reply to the next request."""
    take_turn(ledger, clock)
    clock.now_s += 4.0
    take_turn(ledger, clock)
    assert ledger.summary().gap_s == pytest.approx(4.0)
    assert ledger.summary().llm_s == pytest.approx(2.0)


def test_a_measured_gap_is_no_gap(ledger: TurnLedger, clock: HandClock) -> None:
    """Tool time counts once: as measured, also while the tool still runs."""
    take_turn(ledger, clock)
    ledger.begin_tool()
    clock.now_s += 4.0
    take_turn(ledger, clock)
    ledger.finish_tool("make", 5.0)
    clock.now_s += 3.0
    take_turn(ledger, clock)
    assert ledger.summary().gap_s == 0.0
    assert ledger.summary().tool_s == pytest.approx(5.0)


def test_there_is_no_gap_while_another_turn_runs(ledger: TurnLedger, clock: HandClock) -> None:
    """Only a job with nothing under way waits for its tools."""
    long_turn = ledger.begin()
    take_turn(ledger, clock)
    clock.now_s += 5.0
    take_turn(ledger, clock)
    ledger.finish(long_turn, None, ended_at_s=clock.now_s)
    assert ledger.summary().gap_s == 0.0


def test_a_gap_counts_once_when_turns_overlap(ledger: TurnLedger, clock: HandClock) -> None:
    """The second of two requests at once did not wait for a tool."""
    take_turn(ledger, clock)
    clock.now_s += 4.0
    ledger.begin()
    clock.now_s += 1.0
    ledger.begin()
    assert ledger.summary().gap_s == pytest.approx(4.0)


def test_the_last_step_is_one_turn(ledger: TurnLedger) -> None:
    """Marked once, it is said once."""
    ledger.mark_last_step()
    assert [ledger.begin().is_last_step for _ in range(2)] == [True, False]


def test_a_limit_makes_that_turn_the_last_step(ledger: TurnLedger) -> None:
    """A promise about the number of turns is known beforehand."""
    ledger.limit_turns(2)
    assert [ledger.begin().is_last_step for _ in range(3)] == [False, True, False]


def test_the_summary_adds_up_and_prints(ledger: TurnLedger, clock: HandClock) -> None:
    """Totals in numbers and as a table; what was not reported is said to be so."""
    take_turn(ledger, clock, seconds=1.5)
    take_turn(ledger, clock)
    ledger.finish(ledger.begin(), None, ended_at_s=clock.now_s)
    summary = ledger.summary()
    assert (summary.turns, summary.turns_without_usage) == (3, 1)
    assert (summary.prompt_tokens, summary.cached_tokens, summary.output_tokens) == (200, 160, 10)
    assert str(summary).splitlines() == [
        "job            job",
        "turns          3",
        "prompt tokens  200 (1 turn not reported)",
        "cached tokens  160 (80% of prompt)",
        "output tokens  10 (1 turn not reported)",
        "LLM time       2.50 s",
        "tool time      0.00 s (0 calls)",
        "gap time       0.00 s (between turns, no tool measured)",
    ]


def test_an_empty_job_has_nothing_reported(ledger: TurnLedger) -> None:
    """No count is not a count of zero."""
    assert ledger.summary().prompt_tokens is None
    assert "prompt tokens  not reported" in str(ledger.summary())
