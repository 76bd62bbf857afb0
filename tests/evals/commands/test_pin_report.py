"""Facts about the table and the verdict as text."""

from __future__ import annotations

import re

from agentkv.evals.commands.verify_pin import (
    NO_POLICY_HINT,
    header,
    judge,
    row_line,
    ttl_line,
    verdict_lines,
)

from ..recorded_runs import CONTINUUM, FCFS


def test_a_row_stands_under_its_header() -> None:
    """Every number ends where its column's name ends."""
    names = header().split("  what happened")[0]
    line = row_line(CONTINUUM.turns[2], CONTINUUM.block_size)
    assert " ".join(line[: len(names)].split()) == "3 550 320 32 1000 10 18 19 18 +0"
    ends = [match.end() for match in re.finditer(r"\S+( \S+)*", names)]
    assert all(line[end - 1] != " " and line[end] == " " for end in ends)


def test_the_last_step_has_no_gap() -> None:
    """After the last step nothing is read, and the column says so."""
    names = header().split("  what happened")[0]
    assert row_line(CONTINUUM.turns[4], 32)[: len(names)].endswith("-")


def test_the_ttl_trial_is_one_sentence() -> None:
    """TTL told, TTL seen, and the blocks."""
    assert ttl_line(CONTINUUM.ttl_trial) == (
        "left alone: 5 blocks after its turn, TTL 2.00 s, free 2.09 s after the turn"
    )


def test_a_verdict_names_each_check_once() -> None:
    """Passed checks are one line each, and a passed run gets no advice."""
    lines = verdict_lines(CONTINUUM, judge(CONTINUUM))
    assert [line[:4] for line in lines] == ["ok  "] * 6


def test_a_failed_stock_server_is_told_what_to_do() -> None:
    """Where the routes are missing, the reason behind all reasons is given last."""
    lines = verdict_lines(FCFS, judge(FCFS))
    assert lines[-1] == NO_POLICY_HINT
    assert "FAIL  usage constant in every gap" in lines
