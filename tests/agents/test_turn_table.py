"""Facts about the table of an agent's turns."""

from __future__ import annotations

from agentkv.agents.turn_table import TurnRecord, format_turns

LISTING = TurnRecord(
    turn=1,
    user_prompt="List the files with ls.",
    reply="```bash\nls\n```",
    command="ls",
    output="Output:\nmain.py\n",
    prompt_tokens=164,
    cached_tokens=0,
    output_tokens=7,
    llm_s=0.408,
    tool_s=0.0159,
    exit_status=0,
)
CHATTER = TurnRecord(
    turn=2,
    user_prompt="Explain at length what the whole project is about.",
    reply="It is a project.",
    command=None,
    output="",
    prompt_tokens=None,
    cached_tokens=None,
    output_tokens=None,
    llm_s=1.5,
    tool_s=0.0,
    exit_status=None,
)


def test_a_turn_is_a_row_of_numbers() -> None:
    """Tokens as they are, times in milliseconds, the exit status last."""
    header, row = format_turns([LISTING]).splitlines()
    assert header.split()[-1] == "exit"
    assert " ".join(row.split()) == "1 List the files with ls. ls 164 0 7 408 16 0"


def test_what_is_unknown_is_a_dash() -> None:
    """No command, no tokens and no status are shown as missing, not as zero."""
    row = format_turns([CHATTER]).splitlines()[1]
    assert "(no command)" in row
    assert row.split()[-6:] == ["-", "-", "-", "1500", "0", "-"]


def test_columns_are_aligned_and_texts_clipped() -> None:
    """All lines are of one width, however long a prompt is."""
    lines = format_turns([LISTING, CHATTER]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert "…" in lines[2]


def test_no_turns_are_a_header_alone() -> None:
    """A job that broke off at once still has its table."""
    assert len(format_turns([]).splitlines()) == 1
