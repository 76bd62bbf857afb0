"""The way from events to turns, bubbles, tools, pins and their totals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv.evals.event_log import (
    NUMBERS,
    LoggedJob,
    Record,
    job_row,
    jobs_of,
    passed_over,
    totals,
)
from agentkv.integrations.vllm.watch.job_view import JobView, TurnView, sentence
from tests.evals.event_log.rows import (
    CLOSED,
    TWO_TURNS,
    arrival,
    event,
    finish,
    job_of,
    pinned,
    record_of,
    start,
    tool,
    unpinned,
)


def test_two_turns_become_turns_a_bubble_a_tool_and_pins() -> None:
    """The job of TWO_TURNS has every time, hit and reason that its events carry."""
    job = job_of(*TWO_TURNS)
    first, second = job.turns
    assert (first.arrived_s, first.started_s, first.ended_s) == (1.0, 1.5, 2.0)
    assert (second.prompt_tokens, second.hit_tokens, second.lost_tokens) == (160, 80, 32)
    assert [turn.is_later for turn in job.turns] == [False, True]
    (bubble,) = job.bubbles
    assert (bubble.seconds, bubble.tool_s, bubble.queued_s) == pytest.approx((3.25, 3.0, 0.25))
    assert [pin.end for pin in job.pins] == ["returned", "released"]
    assert job.pins[0].block_seconds == pytest.approx(7 * 3.25)
    (ran,) = job.tools
    assert (ran.name, ran.started_s, ran.ended_s) == ("pytest", 2.1, 4.9)
    assert (job.tokens.later_prompt_tokens, job.tokens.later_hit_tokens) == (160, 80)
    rows = job.rows()
    assert [(row["waited_s"], row["took_s"], row["gap_s"]) for row in rows] == [
        *((0.5, 1.0, 3.0), (0.25, 1.0, None)),
    ]
    assert [row["pin"] for row in rows] == [
        "pins 7 blocks for up to 2 s; its next turn came after 3.2 s",
        "pins 11 blocks for up to 2 s; let go after 0.5 s: the client released the job",
    ]


@pytest.mark.parametrize(
    ("lost", "times_s"), [("tool_finished", (2.1, 5.0)), ("tool_started", (2.1, 4.9))]
)
def test_a_lost_report_of_a_tool_is_filled_in(lost: str, times_s: tuple[float, float]) -> None:
    """A tool ends at the latest with the next turn, and began its duration before its end."""
    (ran,) = job_of(*(row for row in TWO_TURNS if row["event"] != lost)).tools
    assert (ran.started_s, ran.ended_s) == pytest.approx(times_s)


def test_of_two_tools_at_once_each_ends_itself() -> None:
    """The command tells which of two running tools has finished."""
    rows = [tool(1.0, "started", "ls"), tool(1.0, "started", "pytest")]
    job = job_of(*rows, tool(2.0, "finished", "pytest"), tool(3.0, "finished", "ls"))
    assert [run.ended_s for run in job.tools] == [3.0, 2.0]


def test_a_preempted_turn_goes_on() -> None:
    """A preempted turn is one turn, with the times it was out and back."""
    rows = [
        arrival(0.0, 1, 50),
        start(0.0, 50, 0, 0),
        event("preempted", 1.0),
        event("resumed", 2.0, hit_length=48),
        finish(3.0, 1, 64),
    ]
    (turn,) = job_of(*rows).turns
    assert (turn.preempted_s, turn.resumed_s, turn.ended_s) == ([1.0], [2.0], 3.0)


def test_a_job_id_used_again_is_another_job() -> None:
    """An arrival after `closed` begins a second life of the job id."""
    later = [{**row, "at_s": row["at_s"] + 10} for row in TWO_TURNS]
    first, second = jobs_of(record_of(*TWO_TURNS, *later))
    assert (first.label, second.label) == ("job", "job (2)")
    assert len(second.bubbles) == 1


def test_a_record_may_begin_in_mid_job() -> None:
    """A log whose oldest events were dropped gives what the rest tells."""
    (turn,) = job_of(*TWO_TURNS[1:3]).turns
    assert (turn.turn, turn.arrived_s, turn.ended_s) == (None, 1.0, 2.0)
    (pin,) = job_of(unpinned(5.0, "expired", 4, held_s=2.0), event("closed", 5.0, **CLOSED)).pins
    assert (pin.pinned_s, pin.end) == (3.0, "expired")
    rest = job_of(finish(2.0, 1, 112))
    assert (rest.turns, rest.rows()) == ([], [])


def test_parallel_turns_are_told_apart_by_their_prompts() -> None:
    """A later arrival may start first, and no bubble opens while one of two turns runs."""
    rows = [arrival(0.0, 1, 50), arrival(0.1, 2, 70), start(0.2, 70, 0, 0, 0.1)]
    rows += [start(0.5, 50, 0, 0, 0.5), finish(1.0, 2, 80), finish(2.0, 2, 64)]
    job = job_of(*rows)
    assert [turn.started_s for turn in job.turns] == [0.5, 0.2]
    assert [turn.ended_s for turn in job.turns] == [2.0, 1.0]
    assert job.bubbles == []


def test_an_aborted_turn_that_never_ran_opens_no_bubble() -> None:
    """The gap goes on from the last turn that ran."""
    rows = [*TWO_TURNS[:3], arrival(3.0, 2, 160), event("aborted", 3.5)]
    job = job_of(*rows, arrival(4.0, 3, 160), start(4.5, 160, 112, 112, 0.5))
    assert job.turns[1].is_aborted
    assert [(bubble.tool_s, bubble.queued_s) for bubble in job.bubbles] == [(2.0, 0.5)]


def test_a_prompt_that_drops_history_has_diverged() -> None:
    """A prompt that repeats less than what the turn before left has diverged."""
    rows = [*TWO_TURNS[:3], arrival(5.0, 2, 160), start(5.0, 160, 32, 32)]
    assert job_of(*rows).turns[1].is_diverged
    assert not job_of(*TWO_TURNS).turns[1].is_diverged


def test_totals_add_up_all_jobs() -> None:
    """Totals have bubbles, hits, queueing after eviction, and pins kept and wasted."""
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
    """A later turn whose context had not yet filled a block is no first turn."""
    second = [arrival(3.0, 2, 20), start(3.0, 20, 0, 0), finish(4.0, 2, 24)]
    small = [arrival(1.0, 1, 9), start(1.5, 9, 0, 0, 0.5), finish(2.0, 1, 0), *second]
    assert totals(jobs_of(record_of(*small)))["queued_first_s"]["n"] == 1


def test_an_eviction_belongs_to_the_turn_that_starts_next() -> None:
    """Evicted tokens are lost to the next turn that starts, and to no other."""
    rows = [*TWO_TURNS[:-1], arrival(7.0, 3, 200), start(7.0, 200, 176, 176)]
    assert [turn.lost_tokens for turn in job_of(*rows).turns] == [0, 32, 0]
    assert [
        turn.lost_tokens for turn in job_of(event("evicted", 1.0, lost_tokens=5), *rows).turns
    ] == [5, 32, 0]


NAMES = (*NUMBERS, "preempted", "aborted", "tool_started", "tool_finished", "decision")


@settings(max_examples=200)
@given(st.lists(st.sampled_from(NAMES), max_size=60))
def test_any_order_of_events_is_told_without_an_exception(names: list[str]) -> None:
    """In any order of events every turn is counted once and ends after it began."""
    events = [
        {"event": name, "at_s": at_s} | numbers
        for at_s, name in enumerate(names)
        for numbers in [dict.fromkeys(NUMBERS.get(name, ()), at_s % 5)]
    ]
    jobs = jobs_of(Record("test", {LoggedJob("job"): events} if events else {}))
    assert [job_row(job)["turns"] for job in jobs] == [len(job.turns) for job in jobs]
    assert totals(jobs)["turns"] <= names.count("arrival") + names.count("waiting_to_running")
    for job in jobs:
        assert all(bubble.tool_s >= 0 and bubble.queued_s >= 0 for bubble in job.bubbles)
        assert job.started_s <= job.ended_s


DECIDED = {"event": "decision", "blocks": 26}


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"event": "due", "passed": 20}, "due"),
        ({"event": "unpinned", "held_s": "?"}, "unpinned"),
        (
            {"event": "decision", "command": "ls", "ttl_s": 3, "reason": "rule"},
            "pins the KV for up to 3 s while `ls` runs",
        ),
        (
            {**DECIDED, "command": "pytest", "ttl_s": 38.2, "p50_s": 3.04, "p90_s": 6.2},
            "pins 26 blocks for up to 38 s while `pytest` runs, usually 3 to 6.2 s",
        ),
        (
            {**DECIDED, "command": "make", "ttl_s": 0.0, "p50_s": 95.0, "p90_s": 300.0},
            "lets 26 blocks go: `make` runs, usually 95 s to 5 min, too long for a pin",
        ),
        (
            {**DECIDED, "command": None, "ttl_s": 21, "p50_s": None, "p90_s": None},
            "pins 26 blocks for up to 21 s: the reply calls no tool",
        ),
        (
            {**DECIDED, "command": "ls", "blocks": 0, "ttl_s": 21, "p50_s": 0.02, "p90_s": 0.04},
            "pins nothing: `ls` runs, usually 0.1 s",
        ),
        (
            {"event": "unpinned", "held_s": 3.21, "reason": "returned"},
            "its next turn came after 3.2 s",
        ),
        (
            {
                **{"event": "waiting_to_running", "prompt_length": 2000, "hit_length": 0},
                **{"expected_hit_length": 1500, "waited_s": 0.5},
            },
            "runs after 0.50 s: 0 of 2,000 tokens cached, 1,500 expected",
        ),
    ],
)
def test_an_event_reads_as_a_sentence(entry: dict[str, Any], text: str) -> None:
    """One that another version sends otherwise is named, and breaks nothing."""
    assert sentence(entry) == text


def job(name: str, *turns: tuple[float, float | None], engine: int | None = None) -> JobView:
    """A job whose turns arrive and start at these times."""
    return JobView(
        name,
        engine,
        turns[0][0],
        100.0,
        turns=[
            TurnView(number, arrived_s, 100, started_s=started_s)
            for number, (arrived_s, started_s) in enumerate(turns, start=1)
        ],
    )


def counted(jobs: list[JobView], kind: str) -> tuple[int, ...]:
    """Turns, those that waited longer than 10 s, those passed over, and the most."""
    count = passed_over(jobs, 10.0)[kind]
    return tuple(count[name] for name in ("turns", "waited_longer", "passed_over", "most"))


def test_a_turn_of_a_later_job_after_the_time_counts() -> None:
    """A later turn that starts before the time is over, or is of an earlier job, does not count."""
    jobs = [
        job("earlier", (0.0, 0.0), (5.0, 17.0)),
        job("waits", (1.0, 1.0), (5.0, 20.0)),
        job("later", (2.0, 2.0), (13.0, 14.0), (15.5, 16.0), (18.0, 19.0)),
    ]
    assert counted(jobs, "continuing") == (5, 2, 2, 2)
    assert passed_over(jobs, 14.5)["continuing"]["most"] == 0


def test_first_turns_are_passed_over_by_first_turns() -> None:
    """Later turns, turns that never started and jobs that came together do not count as later."""
    jobs = [job("passed", (0.0, 30.0)), job("together", (0.0, 25.0))]
    jobs += [job("passes", (1.0, 20.0), (21.0, 22.0)), job("cut", (1.5, None))]
    assert counted(jobs, "first") == (3, 3, 2, 1)


def test_engines_do_not_compare() -> None:
    """Turns are compared with those of the same engine alone."""
    alone = [job("a", (0.0, 0.0), (1.0, 50.0), engine=0), job("b", (0.5, 40.0), engine=1)]
    assert passed_over(alone, 10.0)["continuing"]["passed_over"] == 0
    together = [job("a", (0.0, 0.0), (1.0, 50.0)), job("b", (0.5, 40.0))]
    assert passed_over(together, 10.0)["continuing"]["passed_over"] == 1


def test_a_job_whose_beginning_is_not_in_the_record_has_no_first_turn() -> None:
    """All turns of a job that began before the log are continuing ones."""
    begun = job("begun", (0.0, 30.0), (31.0, 32.0))
    begun.turns[0].turn, begun.turns[1].turn = None, 8
    found = passed_over([begun, job("later", (1.0, 25.0))], 10.0)
    assert (found["first"]["turns"], found["continuing"]["turns"]) == (1, 2)
    assert found["continuing"]["passed_over"] == 1
