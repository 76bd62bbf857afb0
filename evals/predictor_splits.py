"""What a predictor may learn from and what it is judged on: folds of a trace's commands.

Five ways to split, none at random by row: neighbours in time resemble each other too much.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentkv.commands import analyze_command

from .workload.traces import Trace, TracedCommand

Mode = Literal["frozen", "online"]

SPLITS = ("time", "session", "tool", "trace", "cold")
BOTH_MODES: tuple[Mode, ...] = ("frozen", "online")


@dataclass(frozen=True, slots=True)
class Fold:
    """Rows to learn from and rows to be judged on, disjoint, each in time order."""

    name: str
    train: tuple[TracedCommand, ...]
    test: tuple[TracedCommand, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """The folds of one split; frozen: nothing is learned while judged, online: every row is."""

    name: str
    what: str
    folds: tuple[Fold, ...]
    modes: tuple[Mode, ...] = BOTH_MODES


def num_train_rows(trace: Trace, train_share: float) -> int:
    """How many of a trace's rows are the first `train_share` by time."""
    return round(len(trace.rows) * train_share)


def train_part(traces: Sequence[Trace], train_share: float) -> tuple[TracedCommand, ...]:
    """The first `train_share` of each trace by time, trace after trace."""
    return tuple(
        row for trace in traces for row in trace.rows[: num_train_rows(trace, train_share)]
    )


def time_split(traces: Sequence[Trace], train_share: float) -> Split:
    """Learn from the first part of each trace, be judged on the rest."""
    train = train_part(traces, train_share)
    test = tuple(
        row for trace in traces for row in trace.rows[num_train_rows(trace, train_share) :]
    )
    what = f"the first {train_share:.0%} of each trace by time is learned, the rest judged"
    return Split("time", what, (Fold("time", train, test),) if train and test else ())


def session_split(traces: Sequence[Trace], num_folds: int, seed: int) -> Split:
    """Leave sessions out, `num_folds` groups of them in turn, so that the time stays bounded."""
    rows = _all_rows(traces)
    sessions = list(dict.fromkeys((row.trace, row.session) for row in rows))
    random.Random(seed).shuffle(sessions)
    num_folds = min(num_folds, len(sessions))
    folds = []
    for index in range(num_folds if len(sessions) > 1 else 0):
        left_out = set(sessions[index::num_folds])
        folds.append(
            Fold(
                f"sessions {index + 1}/{num_folds}",
                tuple(row for row in rows if (row.trace, row.session) not in left_out),
                tuple(row for row in rows if (row.trace, row.session) in left_out),
            )
        )
    what = f"{len(sessions)} sessions left out in {num_folds} groups, one group at a time"
    return Split("session", what, tuple(folds))


def tool_split(traces: Sequence[Trace], min_rows: int) -> Split:
    """Leave out each program with `min_rows` rows or more, with every command that runs it.

    Frozen only: what is judged is what features tell of a tool never seen.
    """
    rows = _all_rows(traces)
    names = [frozenset(p.name for p in analyze_command(row.command).programs) for row in rows]
    counts = Counter(name for of_row in names for name in of_row)
    folds = [
        Fold(
            family,
            tuple(row for row, of_row in zip(rows, names, strict=True) if family not in of_row),
            tuple(row for row, of_row in zip(rows, names, strict=True) if family in of_row),
        )
        for family, num_rows in counts.most_common()
        if min_rows <= num_rows < len(rows)
    ]
    what = (
        f"each of {len(folds)} programs with {min_rows} rows or more is left out with every "
        "command that runs it; a command that runs two of them is judged twice"
    )
    return Split("tool", what, tuple(folds), modes=("frozen",))


def trace_split(traces: Sequence[Trace]) -> Split:
    """Leave one trace out at a time: another project. No folds of a single trace."""
    folds = [
        Fold(left_out.name, _all_rows([t for t in traces if t is not left_out]), left_out.rows)
        for left_out in traces
        if len(traces) > 1
    ]
    return Split("trace", "each trace is judged after learning from the others", tuple(folds))


def cold_split(traces: Sequence[Trace]) -> Split:
    """Learn nothing beforehand; meant for models made from other traces."""
    rows = _all_rows(traces)
    return Split("cold", "nothing is learned beforehand", (Fold("cold", (), rows),))


def _all_rows(traces: Sequence[Trace]) -> tuple[TracedCommand, ...]:
    return tuple(row for trace in traces for row in trace.rows)
