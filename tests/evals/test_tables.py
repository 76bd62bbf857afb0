"""What commands print: tables as aligned text and as Markdown, and progress on stderr."""

from __future__ import annotations

import io
import sys

import pytest

from agentkv.evals.progress import progress
from agentkv.evals.tables import cell, markdown_table, text_table

HEADER = ("policy", "mean s")
ROWS = [("fcfs", cell(12.5)), ("agentkv", cell(None))]


def test_a_text_table_aligns_names_left_and_numbers_right() -> None:
    """Columns are as wide as their widest cell, and lines end without spaces."""
    assert text_table(HEADER, ROWS, rule=True).splitlines() == [
        "policy   mean s",
        "---------------",
        "fcfs      12.50",
        "agentkv       -",
    ]


def test_a_markdown_table_marks_its_columns_and_escapes_bars() -> None:
    """The second line says how columns align, and a bar in a cell does not end it."""
    assert markdown_table(HEADER, [("a|b", "1")]).splitlines() == [
        "| policy | mean s |",
        "| ------ | -----: |",
        "| a\\|b   |      1 |",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, *, every_s: float) -> str:
    """What three steps of three print to stderr."""
    monkeypatch.setattr(sys, "stderr", stream)
    with progress("fcfs", 3, "jobs", every_s=every_s) as show:
        for completed in (1, 2, 3, 3):
            show(completed, f"{completed} [done]")
    return stream.getvalue()


@pytest.mark.parametrize(("every_s", "num_lines"), [(0.0, 4), (60.0, 1)])
def test_plain_lines_come_at_most_every_few_seconds_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch, every_s: float, num_lines: int
) -> None:
    """A stream other than a terminal gets one line per interval and one for the last step."""
    lines = shown(monkeypatch, io.StringIO(), every_s=every_s).splitlines()
    assert len(lines) == num_lines
    assert lines[-1] == "fcfs: 3 of 3 jobs in 0 s: 3 [done]"
    assert every_s or "1 of 3 jobs in 0 s, about 0 s left: 1 [done]" in lines[0]


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal shows a bar with the label, the count and the text as written."""
    text = shown(monkeypatch, Terminal(), every_s=60.0)
    assert "fcfs" in text
    assert "3/3" in text
    assert "3 [done]" in text
