"""Tables as aligned text and as Markdown."""

from __future__ import annotations

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
