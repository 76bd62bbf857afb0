"""The pin experiment's rows and verdict as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from .pin_rows import PinRun, TTLTrial, TurnRow
from .pin_verdict import NO_POLICY_HINT, Check

_COLUMNS = (
    ("turn", 4),
    ("prompt tok", 10),
    ("cached tok", 10),
    ("output tok", 10),
    ("latency ms", 10),
    ("before", 6),
    ("after", 6),
    ("expected", 8),
    ("full", 5),
    ("gap", 5),
)
LEGEND = (
    "blocks in use before and after each turn; expected = ceil((prompt + output) / block size),"
    "\nfull = whole blocks, the ones that can stay (the last token sampled has no KV yet);"
    "\ngap = largest change while the tool ran"
)


def header() -> str:
    """The column names, as wide as the rows."""
    return "  ".join(f"{name:>{width}}" for name, width in _COLUMNS) + "  what happened"


def row_line(row: TurnRow, block_size: int) -> str:
    """One turn as a line under the header."""
    values = (
        row.turn,
        row.usage.prompt_tokens,
        row.usage.cached_tokens,
        row.usage.output_tokens,
        f"{row.latency_s * 1e3:.0f}",
        row.blocks_before,
        row.blocks_after,
        row.usage.blocks_touched(block_size),
        row.usage.blocks_full(block_size),
        "-" if row.is_last_step else f"{row.change_in_gap_blocks:+d}",
    )
    cells = (f"{value:>{width}}" for value, (_, width) in zip(values, _COLUMNS, strict=True))
    return "  ".join(cells) + f"  {row.user_prompt} {row.happened}"


def ttl_line(trial: TTLTrial) -> str:
    """The second job in one sentence."""
    told = "not told" if trial.ttl_s is None else f"{trial.ttl_s:.2f} s"
    seen = (
        f"free {trial.held_s:.2f} s after the turn"
        if trial.held_s is not None
        else f"{trial.blocks_at_end} blocks in use after {trial.waited_s:.1f} s"
    )
    return f"left alone: {trial.blocks_after} blocks after its turn, TTL {told}, {seen}"


def verdict_lines(run: PinRun, checks: Sequence[Check]) -> list[str]:
    """Each check with its reasons; a hint at the end if a stock policy explains the failure."""
    lines = []
    for check in checks:
        lines.append(f"{'ok  ' if check.has_passed else 'FAIL'}  {check.name}")
        lines.extend(f"        {problem}" for problem in check.problems)
    if run.policy is None and not all(check.has_passed for check in checks):
        lines.append(NO_POLICY_HINT)
    return lines
