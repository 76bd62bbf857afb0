"""A study's rows on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentkv.errors import InputError
from studies.policy_grid.__main__ import RowFile, check_same, read_rows
from tests.studies.policy_grid.made_rows import CONFIG, row


def write(out: Path, *rows: dict[str, object]) -> None:
    with RowFile(out) as file:
        for each in rows:
            file.add(each)


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    """In their order, over several openings of the file."""
    write(tmp_path, row("fcfs", 1.0))
    write(tmp_path, row("agentkv", 2.0))
    assert read_rows(tmp_path) == [row("fcfs", 1.0), row("agentkv", 2.0)]


def test_the_last_row_of_a_unit_counts(tmp_path: Path) -> None:
    """At the place of its first."""
    write(tmp_path, row("fcfs", 1.0), row("agentkv", 2.0), row("fcfs", 3.0))
    assert [each["mean_s"] for each in read_rows(tmp_path)] == [3.0, 2.0]


def test_a_torn_row_costs_itself_alone(tmp_path: Path) -> None:
    """Whoever appends to it begins a line of its own."""
    write(tmp_path, row("fcfs", 1.0), row("agentkv", 2.0))
    path = tmp_path / "rows.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    write(tmp_path, row("context_serve", 3.0))
    assert [each["policy"] for each in read_rows(tmp_path)] == ["fcfs", "context_serve"]


def test_rows_of_another_version_count_for_nothing(tmp_path: Path) -> None:
    """They lack what is needed; their units are played again."""
    old = {name: value for name, value in row("fcfs", 1.0).items() if name != "one_x"}
    write(tmp_path, old, row("agentkv", 2.0))
    assert [each["policy"] for each in read_rows(tmp_path)] == ["agentkv"]


def test_a_study_that_is_not_there_is_told(tmp_path: Path) -> None:
    """With the file that is missing."""
    with pytest.raises(InputError, match=r"rows\.jsonl: cannot be read"):
        read_rows(tmp_path)


def test_what_differs_is_named(tmp_path: Path) -> None:
    """With both values."""
    rows = [row("fcfs", 1.0)]
    check_same(rows, CONFIG, tmp_path)
    with pytest.raises(InputError, match="made with max_turns = 20, now it is 5"):
        check_same(rows, {**CONFIG, "max_turns": 5}, tmp_path)
