"""Judges a run of the pin experiment: each claim about pinning by name, and why it fails.

Pure: it sees rows and knows nothing about servers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from .pin_rows import PinRun

NO_POLICY_HINT = (
    "the server has no agentkv routes, so it runs a stock policy, which frees a turn's blocks when"
    " the turn ends: start it with --scheduling-policy continuum"
)


@dataclass(frozen=True, slots=True)
class Check:
    """One claim; `problems` is empty if it held."""

    name: str
    problems: tuple[str, ...]

    @property
    def has_passed(self) -> bool:
        """True if nothing spoke against the claim."""
        return not self.problems


def judge(run: PinRun) -> list[Check]:
    """The verdict on each claim, in the order in which the experiment meets them."""
    claims = {
        "usage constant in every gap": _moves_in_gaps(run),
        "usage grows turn by turn": _missing_growth(run),
        "usage zero after the last step": _left_after_last_step(run),
        "usage zero after a TTL runs out": _left_after_ttl(run),
        "cached tokens on the next turn": _missing_hits(run),
        "no other traffic during the run": _foreign_traffic(run),
    }
    return [Check(name, tuple(problems)) for name, problems in claims.items()]


def _moves_in_gaps(run: PinRun) -> Iterator[str]:
    for row in run.turns:
        if row.is_last_step:
            continue
        if row.blocks_after <= run.blocks_at_start:
            yield f"turn {row.turn}: no block was held when the turn had ended"
        elif row.change_in_gap_blocks:
            readings = ", ".join(map(str, row.gap_blocks))
            yield f"turn {row.turn}: {row.blocks_after} blocks after it, then {readings}"


def _missing_growth(run: PinRun) -> Iterator[str]:
    held = [row.blocks_after for row in run.turns if not row.is_last_step]
    for turn, (earlier, later) in enumerate(pairwise([run.blocks_at_start, *held]), start=1):
        if later <= earlier:
            yield f"turn {turn}: {later} blocks, {earlier} before it"


def _left_after_last_step(run: PinRun) -> Iterator[str]:
    last = run.turns[-1]
    if not last.is_last_step:
        yield f"the job ended early, after turn {last.turn}"
    elif (left := last.blocks_after - run.blocks_at_start) != 0:
        yield f"turn {last.turn}: {left} blocks are still held"


def _left_after_ttl(run: PinRun) -> Iterator[str]:
    trial = run.ttl_trial
    if trial.blocks_after <= trial.blocks_before:
        yield "no block was held after the second job's turn, so no TTL could run out"
    elif trial.held_s is None:
        left = trial.blocks_at_end - trial.blocks_before
        yield f"{left} blocks are still held {trial.waited_s:.1f} s after the turn"


def _missing_hits(run: PinRun) -> Iterator[str]:
    for row in run.turns[1:]:
        if row.usage.cached_tokens <= 0:
            yield f"turn {row.turn}: none of {row.usage.prompt_tokens} prompt tokens were cached"


def _foreign_traffic(run: PinRun) -> Iterator[str]:
    if run.blocks_at_start:
        yield f"{run.blocks_at_start} blocks were held before the run began"
    if run.num_foreign_requests:
        yield f"{run.num_foreign_requests} other requests ran, so usage is not this job's alone"
