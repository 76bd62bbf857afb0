"""What an agent's turns took, one row each, and the rows as a plain text table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_MAX_TEXT_CHARS = 30


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn: a reply of the model and what its commands did.

    `command` is None for a reply without a usable one, a number of tokens where the server did not
    report it, `exit_status` if nothing ran or the time limit came first.
    """

    turn: int
    user_prompt: str
    reply: str
    command: str | None
    output: str
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    llm_s: float
    tool_s: float
    exit_status: int | None


_COLUMNS = (
    "turn",
    "user prompt",
    "command",
    "prompt tok",
    "cached tok",
    "output tok",
    "LLM ms",
    "tool ms",
    "exit",
)
_TEXT_COLUMNS = ("user prompt", "command")


def format_turns(records: Iterable[TurnRecord]) -> str:
    """The rows under their header; text to the left, numbers to the right, a dash for unknown."""
    rows = [_COLUMNS, *(_cells(record) for record in records)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if name in _TEXT_COLUMNS else cell.rjust(width)
            for name, cell, width in zip(_COLUMNS, row, widths, strict=True)
        ).rstrip()
        for row in rows
    )


def _cells(record: TurnRecord) -> tuple[str, ...]:
    return (
        str(record.turn),
        _one_line(record.user_prompt),
        "(no command)" if record.command is None else _one_line(record.command),
        _or_dash(record.prompt_tokens),
        _or_dash(record.cached_tokens),
        _or_dash(record.output_tokens),
        f"{record.llm_s * 1e3:.0f}",
        f"{record.tool_s * 1e3:.0f}",
        _or_dash(record.exit_status),
    )


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TEXT_CHARS else line[: _MAX_TEXT_CHARS - 1] + "…"
