"""Facts about what a person sees while a run is on."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

from agentkv.evals.swebench.instance_state import InstanceState
from agentkv.evals.swebench.live_table import LiveTable, PlainLines, summary


def states() -> list[InstanceState]:
    turns: list[dict[str, Any]] = [
        {"prompt_tokens": 100, "cached_tokens": 0},
        {"prompt_tokens": 100, "cached_tokens": 50},
        {"prompt_tokens": 100, "cached_tokens": None},
    ]
    agent = SimpleNamespace(turn_rows=turns)
    return [
        InstanceState("a-1", "running", "grep -rn [bold] .", started_s=2.0, agent=agent),
        InstanceState("a-2", "Submitted", started_s=0.0, ended_s=5.0, is_over=True),
        InstanceState("a-3", "error:OSError", started_s=0.0, ended_s=1.0, is_over=True),
        InstanceState("a-4"),
    ]


def test_the_table_shows_those_at_work() -> None:
    """Instance, turn, command as it is, state, seconds and the share that was cached."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=120)
    console.print(LiveTable(states(), "continuum", lambda: 12.0).render())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    (row,) = [line for line in text.splitlines() if "a-1" in line]
    cells = [cell.strip() for cell in row.split("│")[1:-1]]
    assert cells == ["a-1", "3", "grep -rn [bold] .", "running", "10", "25%"]
    assert "a-2" not in text


def test_a_narrow_terminal_cuts_the_command_only() -> None:
    """All numbers stay."""
    from rich.console import Console

    shown = states()
    shown[0].command = "python3 -m pytest tests " * 5
    console = Console(file=io.StringIO(), width=60)
    console.print(LiveTable(shown, "continuum", lambda: 12.0).render())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    (row,) = [line for line in text.splitlines() if "a-1" in line]
    cells = [cell.strip() for cell in row.split("│")[1:-1]]
    assert [*cells[:2], *cells[3:]] == ["a-1", "3", "running", "10", "25%"]
    assert cells[2].startswith("python3")


def test_the_numbers_add_up() -> None:
    """Ended by how, at work, waiting."""
    assert summary(states()) == ("2 of 4 over (1 Submitted, 1 error:OSError), 1 at work, 1 waiting")


def test_plain_lines_tell_each_change_once() -> None:
    """However often they are asked."""
    out = io.StringIO()
    lines = PlainLines(states(), "fcfs", lambda: 12.0, out)
    lines.tick()
    lines.tick()
    assert out.getvalue().splitlines() == [
        "fcfs:   12.0 s: a-1: begins",
        "fcfs:   12.0 s: a-2: begins",
        "fcfs:   12.0 s: a-2: Submitted, 0 turns, 5 s, - cached",
        "fcfs:   12.0 s: a-3: begins",
        "fcfs:   12.0 s: a-3: error:OSError, 0 turns, 1 s, - cached",
    ]
