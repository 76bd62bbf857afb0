"""From events to turns, bubbles, tools and pins."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv.evals.event_log.jobs import jobs_of
from agentkv.evals.event_log.reading import NUMBERS, Event, JobKey, Record
from agentkv.evals.event_log.totals import job_row, totals
from tests.evals.event_log.rows import (
    TWO_TURNS,
    arrival,
    closed,
    evicted,
    finish,
    job_of,
    pinned,
    record_of,
    start,
    tool,
    unpinned,
)


def test_turns_have_their_times_and_hits() -> None:
    """Arrival, start and end of both turns, and what the second one found."""
    first, second = job_of(*TWO_TURNS).turns
    assert (first.arrived_s, first.started_s, first.ended_s) == (1.0, 1.5, 2.0)
    assert (second.prompt_tokens, second.hit_tokens, second.lost_tokens) == (160, 80, 32)
    assert not first.is_continuing
    assert second.is_continuing


def test_a_bubble_is_tools_and_then_the_queue() -> None:
    """From the end of a turn over the next arrival to the next start."""
    (bubble,) = job_of(*TWO_TURNS).bubbles
    assert bubble.seconds == pytest.approx(3.25)
    assert bubble.tool_s == pytest.approx(3.0)
    assert bubble.queued_s == pytest.approx(0.25)


def test_pins_end_for_a_reason() -> None:
    """The first was taken over by the next turn, the second released with the job."""
    job = job_of(*TWO_TURNS)
    assert [pin.end for pin in job.pins] == ["returned", "released"]
    assert job.pins[0].block_seconds == pytest.approx(7 * 3.25)


def test_tools_run_from_started_to_finished() -> None:
    """As the client said."""
    (pytest_run,) = job_of(*TWO_TURNS).tools
    assert (pytest_run.name, pytest_run.started_s, pytest_run.ended_s) == ("pytest", 2.1, 4.9)


def test_a_tool_never_reported_finished_ends_with_the_next_turn() -> None:
    """The client's report may be lost."""
    rows = [row for row in TWO_TURNS if row["event"] != "tool_finished"]
    assert [run.ended_s for run in job_of(*rows).tools] == [5.0]


def test_a_tool_never_reported_started_began_its_duration_before() -> None:
    """What is known of it is its end and how long it took."""
    rows = [row for row in TWO_TURNS if row["event"] != "tool_started"]
    assert [run.started_s for run in job_of(*rows).tools] == [pytest.approx(2.1)]


def test_of_two_tools_at_once_each_ends_itself() -> None:
    """The command tells them apart."""
    rows = [tool(1.0, "started", "ls"), tool(1.0, "started", "pytest")]
    job = job_of(*rows, tool(2.0, "finished", "pytest"), tool(3.0, "finished", "ls"))
    assert [run.ended_s for run in job.tools] == [3.0, 2.0]


def test_a_preempted_turn_goes_on() -> None:
    """It is one turn, with the time it was out."""
    rows = [
        arrival(0.0, 1, 50),
        start(0.0, 50, 0, 0),
        {"event": "preempted", "at_s": 1.0},
        {"event": "resumed", "at_s": 2.0, "hit_length": 48},
        finish(3.0, 1, 64),
    ]
    (turn,) = job_of(*rows).turns
    assert (turn.preempted_s, turn.resumed_s, turn.ended_s) == ([1.0], [2.0], 3.0)


def test_a_job_id_used_again_is_another_job() -> None:
    """The first life ends with `closed`."""
    later = [{**row, "at_s": row["at_s"] + 10} for row in TWO_TURNS]
    first, second = jobs_of(record_of(*TWO_TURNS, *later))
    assert (first.label, second.label) == ("job", "job (2)")
    assert len(second.bubbles) == 1


def test_a_record_may_begin_in_mid_job() -> None:
    """The oldest events are dropped first: what can be told of the rest is."""
    (turn,) = job_of(*TWO_TURNS[1:3]).turns
    assert (turn.turn, turn.arrived_s, turn.ended_s) == (None, 1.0, 2.0)
    (pin,) = job_of(unpinned(5.0, "expired", 4, held_s=2.0), closed(5.0)).pins
    assert (pin.pinned_s, pin.end) == (3.0, "expired")
    assert job_of(finish(2.0, 1, 112)).turns == []


def test_parallel_turns_are_told_apart_by_their_prompts() -> None:
    """A later arrival may start first; no bubble opens while one of them runs."""
    rows = [arrival(0.0, 1, 50), arrival(0.1, 2, 70), start(0.2, 70, 0, 0, 0.1)]
    rows += [start(0.5, 50, 0, 0, 0.5), finish(1.0, 2, 80), finish(2.0, 2, 64)]
    job = job_of(*rows)
    assert [turn.started_s for turn in job.turns] == [0.5, 0.2]
    assert [turn.ended_s for turn in job.turns] == [2.0, 1.0]
    assert job.bubbles == []


def test_an_aborted_turn_that_never_ran_opens_no_bubble() -> None:
    """The gap goes on from the last turn that ran."""
    rows = [*TWO_TURNS[:3], arrival(3.0, 2, 160), {"event": "aborted", "at_s": 3.5}]
    job = job_of(*rows, arrival(4.0, 3, 160), start(4.5, 160, 112, 112, 0.5))
    assert job.turns[1].is_aborted
    assert [(bubble.tool_s, bubble.queued_s) for bubble in job.bubbles] == [(2.0, 0.5)]


def test_a_prompt_that_drops_history_has_diverged() -> None:
    """It repeats less than what the turn before left."""
    rows = [*TWO_TURNS[:3], arrival(5.0, 2, 160), start(5.0, 160, 32, 32)]
    assert job_of(*rows).turns[1].is_diverged
    assert not job_of(*TWO_TURNS).turns[1].is_diverged


def test_totals_add_up_what_the_issue_asks_for() -> None:
    """Bubbles, hits, queueing after eviction, pins kept and wasted, preemptions."""
    wasted = [*TWO_TURNS[:3], pinned(2.0, 7), unpinned(3.0, "pressure", 7)]
    jobs = jobs_of(record_of(*TWO_TURNS)) + jobs_of(record_of(*wasted, job_id="other"))
    total = totals(jobs)
    assert (total["jobs"], total["turns"], total["turns_finished"]) == (2, 3, 3)
    assert total["bubble_s"]["mean"] == pytest.approx(3.25)
    assert (total["hit_tokens"], total["prompt_tokens"], total["hit_rate"]) == (80, 160, 0.5)
    assert total["queued_evicted_s"]["mean"] == pytest.approx(0.25)
    assert total["queued_kept_s"]["n"] == 0
    assert (total["pins"], total["pins_kept"], total["pins_wasted"]) == (3, 1, 1)
    assert total["pin_ends"] == {"returned": 1, "released": 1, "pressure": 1}
    assert (total["kept_block_s"], total["wasted_block_s"]) == (22.75, 7.0)
    assert total["closed"] == {"released": 1, "open": 1}


def test_a_first_turn_is_a_jobs_first() -> None:
    """And not a later one whose context had not yet filled a block."""
    second = [arrival(3.0, 2, 20), start(3.0, 20, 0, 0), finish(4.0, 2, 24)]
    small = [arrival(1.0, 1, 9), start(1.5, 9, 0, 0, 0.5), finish(2.0, 1, 0), *second]
    assert totals(jobs_of(record_of(*small)))["queued_first_s"]["n"] == 1


def test_an_eviction_belongs_to_the_turn_that_starts_next() -> None:
    """Not to the one after it."""
    rows = [*TWO_TURNS[:-1], arrival(7.0, 3, 200), start(7.0, 200, 176, 176)]
    assert [turn.lost_tokens for turn in job_of(*rows).turns] == [0, 32, 0]
    assert [turn.lost_tokens for turn in job_of(evicted(1.0, 5), *rows).turns] == [5, 32, 0]


NAMES = (*NUMBERS, "preempted", "aborted", "tool_started", "tool_finished", "decision")


@settings(max_examples=200)
@given(st.lists(st.sampled_from(NAMES), max_size=60))
def test_any_order_of_events_is_told_without_an_exception(names: list[str]) -> None:
    """Also one that no server would write: every turn is counted once, ends after it began."""
    events = [
        Event(name, float(at_s), dict.fromkeys(NUMBERS.get(name, ()), at_s % 5))
        for at_s, name in enumerate(names)
    ]
    jobs = jobs_of(Record("test", {JobKey("job"): events} if events else {}))
    assert [job_row(job)["turns"] for job in jobs] == [len(job.turns) for job in jobs]
    assert totals(jobs)["turns"] <= names.count("arrival") + names.count("waiting_to_running")
    for job in jobs:
        assert all(bubble.tool_s >= 0 and bubble.queued_s >= 0 for bubble in job.bubbles)
        assert job.started_s <= job.ended_s
