"""Rows as a grid: every column as wide as its widest cell."""

GAP = "  "


def column_widths(rows: list[list[str]]) -> list[int]:
    """The width of each column."""
    return [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]


def render(rows: list[list[str]]) -> str:
    """The rows below each other, cells padded on the right."""
    if not rows:
        return ""
    widths = column_widths(rows)
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths)]
        lines.append(GAP.join(cells).rstrip())
    return "\n".join(lines)
