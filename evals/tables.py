"""Prints rows as aligned text or as a Markdown table.

Used by every command and report that shows a table. Knows nothing of what the cells mean.
"""

from collections.abc import Iterable, Sequence

from agentkv.visible import visible


def cell(value: float | None, form: str = ".2f", missing: str = "-") -> str:
    """Format a number by a format specification, such as `.1%`."""
    return missing if value is None else format(value, form)


def text_table(
    header: Sequence[str], rows: Iterable[Sequence[object]], *, left: int = 1, rule: bool = False
) -> str:
    """Columns as wide as their widest cell: the first `left` flush left, the others flush right.

    rule: draw a line of dashes under the header.
    """
    lines = ["  ".join(line).rstrip() for line in _aligned(header, rows, left)]
    if rule:
        lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table whose source is aligned, too; a `|` inside a cell is escaped."""
    safe = [[str(value).replace("|", "\\|") for value in row] for row in rows]
    head, *body = _aligned(header, safe, 1)
    marks = [
        "-" * len(text) if not i else "-" * (len(text) - 1) + ":" for i, text in enumerate(head)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, marks, *body))


def _aligned(header: Sequence[str], rows: Iterable[Sequence[object]], left: int) -> list[list[str]]:
    lines = [list(header), *([visible(str(value)) for value in row] for row in rows)]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    return [
        [
            text.ljust(width) if place < left else text.rjust(width)
            for place, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
