"""The server's record as a timeline: turns, gaps, tools, pins and evictions of each job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from agentkv.commands import analyze_command

from ..load.record_jobs import KEPT_ENDS, WASTED_ENDS, JobRecord, PinRecord, ToolRecord, TurnRecord
from .timeline import Lane, Mark, Span, draw_lanes

_MAX_LABEL_CHARS = 22


def draw_record(jobs: Sequence[JobRecord], path: Path, *, title: str) -> Path:
    """Write the picture of these jobs; OSError if that fails."""
    end_s = max(job.ended_s for job in jobs)
    lanes = [_lane(job, end_s) for job in jobs]
    conditions = f"{len(jobs)} jobs as the server's own timestamps record has them"
    return draw_lanes(lanes, path, title=title, conditions=conditions)


def _lane(job: JobRecord, end_s: float) -> Lane:
    """What has not ended lasts until the end of the picture."""
    spans = [span for turn in job.turns for span in _turn_spans(turn, end_s)]
    spans += [Span("gap", bubble.ended_s, bubble.arrived_s) for bubble in job.bubbles]
    spans += [
        Span("tool", tool.started_s, tool.ended_s or end_s, _what_runs(tool)) for tool in job.tools
    ]
    spans += [Span(_pin_kind(pin), pin.pinned_s, pin.ended_s or end_s) for pin in job.pins]
    label = job.label if len(job.label) <= _MAX_LABEL_CHARS else f"…{job.label[-21:]}"
    return Lane(label, tuple(spans), tuple(_marks(job)))


def _what_runs(tool: ToolRecord) -> str:
    """The program that does the work: the server's own name for it may be the `cd` before it."""
    programs = analyze_command(tool.command).programs
    return programs[0].key if programs else tool.name


def _turn_spans(turn: TurnRecord, end_s: float) -> Iterator[Span]:
    ended_s = end_s if turn.ended_s is None else turn.ended_s
    if turn.started_s is None:
        yield Span("queued", turn.arrived_s, ended_s)
        return
    yield Span("queued", turn.arrived_s, turn.started_s)
    hit = f"{turn.hit_tokens / turn.prompt_tokens:.0%}" if turn.context_before_tokens else ""
    yield Span("running", turn.started_s, ended_s, hit)
    for index, preempted_s in enumerate(turn.preempted_s):
        resumed_s = turn.resumed_s[index] if index < len(turn.resumed_s) else ended_s
        yield Span("preempted", preempted_s, resumed_s)


def _pin_kind(pin: PinRecord) -> str:
    if pin.end in KEPT_ENDS:
        return "pin_kept"
    return "pin_wasted" if pin.end in WASTED_ENDS else "pin_over"


def _marks(job: JobRecord) -> Iterator[Mark]:
    for turn in job.turns:
        if turn.lost_tokens and turn.started_s is not None:
            yield Mark("evicted", turn.started_s)
        if turn.is_aborted and turn.ended_s is not None:
            yield Mark("failed", turn.ended_s)
    if job.closed_s is not None:
        yield Mark("closed", job.closed_s)
