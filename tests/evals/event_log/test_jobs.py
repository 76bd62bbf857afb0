"""The way from events to turns, bubbles, tools, pins and their totals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv.evals.event_log import job_row, totals
from agentkv.evals.traces.served import run_tools
from agentkv.integrations.vllm.watch.job_view import JobView, job_views, sentence
from tests.evals.event_log.rows import (
    TWO_TURNS,
    arrival,
    event,
    finish,
    job_of,
    pinned,
    start,
    tool,
    unpinned,
)


def test_two_turns_become_turns_a_bubble_a_tool_and_pins() -> None:
    """The job of TWO_TURNS has every time, hit and reason that its events carry."""
    job = job_of(*TWO_TURNS)
    first, second = job.turns
    assert (first.arrived_s, first.started_s, first.ended_s) == (1.0, 1.5, 2.0)
    assert (second.prompt_tokens, second.hit_tokens, second.missed) == (160, 80, "pressure")
    assert [turn.is_later for turn in job.turns] == [False, True]
    (bubble,) = job.bubbles
    assert (bubble.tool_s, bubble.queued_s) == pytest.approx((3.0, 0.25))
    assert [pin.end for pin in job.pins] == ["returned", "released"]
    assert job_row(job)["kept_block_s"] == pytest.approx(7 * 3.25)
    (ran,) = run_tools(job.entries)
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


WITHOUT = {
    name: [row for row in TWO_TURNS if row["event"] != name]
    for name in ("tool_started", "tool_finished")
}
PREEMPTED = [event("preempted", 1.0), event("resumed", 2.0, hit_length=48)]
UNSEEN = [*TWO_TURNS[:3], arrival(3.0, 2, 160), event("aborted", 3.5)]
PARALLEL = [
    *(arrival(0.0, 1, 50), arrival(0.1, 2, 70), start(0.2, 70, 0, 0, 0.1)),
    *(start(0.5, 50, 0, 0, 0.5), finish(1.0, 2, 80), finish(2.0, 2, 64)),
]
TOOLS = [
    *(tool(1.0, "started", "ls"), tool(1.0, "started", "pytest")),
    *(tool(2.0, "finished", "pytest"), tool(3.0, "finished", "ls")),
]


@pytest.mark.parametrize(
    ("rows", "look", "seen"),
    [
        (WITHOUT["tool_finished"], lambda job: run_tools(job.entries)[0].ended_s, 5.0),
        (WITHOUT["tool_started"], lambda job: run_tools(job.entries)[0].started_s, 2.1),
        (TOOLS, lambda job: [ran.ended_s for ran in run_tools(job.entries)], [3.0, 2.0]),
        (
            [arrival(0.0, 1, 50), start(0.0, 50, 0, 0), *PREEMPTED, finish(3.0, 1, 64)],
            lambda job: [(turn.preempted_s, turn.ended_s) for turn in job.turns],
            [([1.0], 3.0)],
        ),
        (
            TWO_TURNS[1:3],
            lambda job: [(turn.turn, turn.arrived_s, turn.ended_s) for turn in job.turns],
            [(None, 1.0, 2.0)],
        ),
        ([unpinned(5.0, "expired", 4, held_s=2.0)], lambda job: job.pins[0].pinned_s, 3.0),
        ([finish(2.0, 1, 112)], lambda job: (job.turns, job.rows()), ([], [])),
        (
            PARALLEL,
            lambda job: [(turn.started_s, turn.ended_s) for turn in job.turns],
            [(0.5, 2.0), (0.2, 1.0)],
        ),
        (PARALLEL, lambda job: job.bubbles, []),
        (
            [*UNSEEN, arrival(4.0, 3, 160), start(4.5, 160, 112, 112, 0.5)],
            lambda job: [(bubble.tool_s, bubble.queued_s) for bubble in job.bubbles],
            [(2.0, 0.5)],
        ),
    ],
    ids=[
        *("a lost end of a tool", "a lost start of one", "two tools at once", "a preemption"),
        *("a log that begins in mid job", "the pin of one", "an end without its turn"),
        *("parallel turns", "no gap while one runs", "a turn that never ran"),
    ],
)
def test_what_events_say_of_a_job(
    rows: list[dict[str, Any]], look: Callable[[JobView], Any], seen: Any
) -> None:
    """What a log lost is filled in from the rest of it, and each event goes to its own turn."""
    assert look(job_of(*rows)) == (pytest.approx(seen) if isinstance(seen, float) else seen)


def test_a_job_id_used_again_is_another_job() -> None:
    """An arrival after `closed` begins a second life of the job id."""
    later = [{**row, "at_s": row["at_s"] + 10} for row in TWO_TURNS]
    first, second = job_views("job", [*TWO_TURNS, *later])
    assert (first.label, second.label) == ("job", "job (2)")
    assert len(second.bubbles) == 1


def test_totals_add_up_all_jobs() -> None:
    """Totals have bubbles, hits, queueing after eviction, and pins kept and wasted."""
    wasted = [*TWO_TURNS[:3], pinned(2.0, 7), unpinned(3.0, "pressure", 7)]
    jobs = [job_of(*TWO_TURNS), job_of(*wasted)]
    total = totals(jobs)
    assert (total["jobs"], total["turns"], total["turns_finished"]) == (2, 3, 3)
    assert total["tools_s"]["mean"] == pytest.approx(3.0)
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
    assert totals([job_of(*small)])["queued_first_s"]["n"] == 1


NUMBERS = {
    "arrival": ("turn", "prompt_length"),
    "waiting_to_running": (
        *("prompt_length", "hit_length", "expected_hit_length", "waited_s"),
        *("is_later", "is_side_request"),
    ),
    "reuse": ("turn", "expected_tokens"),
    "resumed": ("hit_length",),
    "evicted": ("lost_tokens",),
    "finish": ("turn", "context_length", "output_length", "ttft_s"),
    "pinned": ("blocks", "ttl_s"),
    "unpinned": ("blocks", "held_s", "reason"),
    "closed": ("turns", "reason"),
}
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
    jobs = job_views("job", events)
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
        ({"event": "waiting_to_running", "prompt_length": 2000}, "waiting to running"),
    ],
)
def test_an_event_reads_as_a_sentence(entry: dict[str, Any], text: str) -> None:
    """One that another version sends otherwise is named, and breaks nothing."""
    assert sentence(entry) == text
