"""Draws jobs over time, a lane for each: queueing, running, tools, and memory held meanwhile.

`draw_run_timeline` shows the same jobs under each policy (`agentkv plot`), `draw_record` what a
server's event log holds (`agentkv record`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.patches import Patch

from agentkv.commands import analyze_command
from agentkv.errors import InputError

from ..event_log.jobs import KEPT_ENDS, WASTED_ENDS, JobRecord, TurnRecord
from ..outcomes import JobOutcome
from .runs import Group, Run, conditions
from .style import (
    BLUE,
    FONT_PT,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    SKY,
    VERMILLION,
    common_style,
    in_order,
    new_figure,
    save,
)


class Span(NamedTuple):
    """Something that lasted; `kind` is a key of KINDS, `text` is written on it where it fits."""

    kind: str
    start_s: float
    end_s: float
    text: str = ""


class Lane(NamedTuple):
    """One job's row; `marks` are keys of MARKS and times. Groups are set off by a line."""

    label: str
    spans: list[Span]
    marks: list[tuple[str, float]]
    group: str = ""


class Kind(NamedTuple):
    """How a kind of span is drawn: its place in the lane (0 to 1, upwards), and its colours."""

    label: str
    bottom: float
    height: float
    color: str
    ink: str = "white"
    hatch: str | None = None

    def fill(self) -> dict[str, Any]:
        edge = GREY if self.hatch else "none"
        return {"facecolor": self.color, "hatch": self.hatch, "edgecolor": edge}


_FOUND = "(share of the prompt found in the cache)"
KINDS = {
    "queued": Kind("queued", 0.36, 0.44, LIGHT, "black"),
    "prefill": Kind(f"queued and prefill {_FOUND}", 0.36, 0.44, SKY, "black"),
    "running": Kind(f"running {_FOUND}", 0.36, 0.44, BLUE),
    "decode": Kind("decode", 0.36, 0.44, BLUE),
    "preempted": Kind("preempted", 0.36, 0.44, "white", "black", "////"),
    "gap": Kind("between turns", 0.565, 0.03, "#bdbdbd", "black"),
    "tool": Kind("tool", 0.53, 0.10, GREY, "black"),
    "pin_kept": Kind("pinned, job came back", 0.18, 0.12, GREEN),
    "pin_wasted": Kind("pinned in vain (expired or yielded)", 0.18, 0.12, ORANGE, "black"),
    "pin_over": Kind("pinned until the job was over, or still", 0.18, 0.12, SKY, "black", "...."),
}
"""In the order of drawing and of the legend."""
MARKS = {
    "evicted": ("cache was gone", "v", VERMILLION, 7),
    "lost": ("found less than half of its context", "v", VERMILLION, 7),
    "failed": ("failed or aborted", "X", VERMILLION, 7),
    "closed": ("job over", "|", "black", 9),
}
"""Label, marker, colour and size."""
_LANE_IN = 0.62
_WIDTH_IN = 11.0
_CHAR_IN = 0.075
"""Width of a character of the text on spans; what does not fit is left out."""
_MAX_LABEL_CHARS = 22
_SHARES = (0.5, 0.9, 0.1, 1.0)
"""Jobs shown, while there is room: at these places when all are ordered by how long they took."""
_MAX_LANES = 18
_LOST_SHARE = 0.5
"""A turn that finds less than this share of the context before it is marked."""
_MIN_LOST_TOKENS = 256
"""Unless the loss is as small as two of the largest blocks (128 on CPU): a block must be full."""


def draw_lanes(
    lanes: Sequence[Lane], path: Path, *, title: str, conditions: str, x_label: str
) -> Path:
    """Write the picture; InputError if there is nothing to draw, OSError if writing fails."""
    lanes = [lane for lane in lanes if lane.spans]
    if not lanes:
        raise InputError(f"{title}: no job with a turn, a tool or a pin to draw")
    with common_style():
        figure = new_figure(_WIDTH_IN, 1.5 + _LANE_IN * max(len(lanes), 2))
        axes = figure.subplots()
        start_s = min(span.start_s for lane in lanes for span in lane.spans)
        end_s = max(span.end_s for lane in lanes for span in lane.spans)
        second_in = 0.85 * _WIDTH_IN / max(end_s - start_s, 1e-9)
        for row, lane in enumerate(lanes):
            _draw_lane(axes, lane, len(lanes) - 1 - row, start_s, second_in)
            if row and lane.group != lanes[row - 1].group:
                axes.axhline(len(lanes) - row, color=GREY, linewidth=0.8)
        middles = [len(lanes) - 0.42 - row for row in range(len(lanes))]
        axes.set_yticks(middles, [lane.label for lane in lanes])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.set(xlim=(0, (end_s - start_s) * 1.01), ylim=(0, len(lanes)), title=title)
        axes.set_xlabel(x_label)
        used = {span.kind for lane in lanes for span in lane.spans}
        handles: list[Any] = [
            Patch(label=kind.label, **kind.fill()) for name, kind in KINDS.items() if name in used
        ]
        for name in sorted({name for lane in lanes for name, _ in lane.marks}):
            label, marker, color, _ = MARKS[name]
            handles += axes.plot([], [], marker, color=color, label=label)
        place = "outside upper center"
        figure.legend(handles=handles, loc=place, ncols=4, fontsize=FONT_PT - 1)
        return save(figure, path, conditions=conditions)


def _draw_lane(axes: Any, lane: Lane, bottom: int, start_s: float, second_in: float) -> None:
    order = list(KINDS)
    for name, span_start_s, end_s, text in sorted(lane.spans, key=lambda s: order.index(s.kind)):
        kind, left_s, width_s = KINDS[name], span_start_s - start_s, end_s - span_start_s
        place = (bottom + kind.bottom, kind.height)
        axes.broken_barh([(left_s, width_s)], place, linewidth=0.4, zorder=3, **kind.fill())
        if text and len(text) * _CHAR_IN <= width_s * second_in:
            # the text of a thin span stands above it
            rise = kind.height + 0.12 if name in ("tool", "gap") else kind.height / 2
            style = {"ha": "center", "va": "center", "fontsize": FONT_PT - 2, "zorder": 4}
            axes.text(left_s + width_s / 2, place[0] + rise, text, color=kind.ink, **style)
    for name, at_s in lane.marks:
        _, marker, color, size = MARKS[name]
        height = bottom + (0.90 if marker == "v" else 0.58)
        style = {"markersize": size, "zorder": 5, "clip_on": False}
        axes.plot(at_s - start_s, height, marker, color=color, **style)


def draw_run_timeline(group: Group, path: Path, *, baseline: str) -> Path:
    """Draw jobs under the heaviest load, picked by their durations under the baseline."""
    heaviest = group.heaviest().runs
    first = {run.policy: run for run in reversed(heaviest)}
    # where a policy was repeated, the run of the same jobs as the others'
    first |= {run.policy: run for run in heaviest if run.pair == heaviest[0].pair}
    runs = [first[policy] for policy in in_order(first)]
    leading = next((run for run in runs if run.policy == baseline), runs[0])
    shares = sorted(_SHARES[: max(1, _MAX_LANES // len(runs))])
    common = set.intersection(
        *(
            {job.job_id for job in run.outcome.jobs if job.status == "done" and job.is_whole}
            for run in runs
        )
    )
    ordered = sorted(
        (job.duration_s, job.job_id) for job in leading.outcome.jobs if job.job_id in common
    )
    if not ordered:
        raise InputError(f"{path.name}: no job is done under every policy")
    picked = dict.fromkeys(ordered[round(share * (len(ordered) - 1))][1] for share in shares)
    lanes = [
        _run_lane(run, job)
        for job_id in picked
        for run in runs
        for job in run.outcome.jobs
        if job.job_id == job_id
    ]
    places = ", ".join(f"{share:.0%}" for share in shares)
    note = f"jobs at {places} when ordered by duration under {leading.policy}"
    return draw_lanes(
        lanes,
        path,
        title=f"The same jobs under each policy, {group.at(runs[0].load).title()}",
        conditions=conditions(runs, _WIDTH_IN, note),
        x_label="seconds from the job's arrival",
    )


def _run_lane(run: Run, job: JobOutcome) -> Lane:
    zero_s, context_tokens = job.arrived_s, 0
    spans: list[Span] = []
    marks: list[tuple[str, float]] = []
    for turn in job.turns:
        sent_s, ended_s = turn.sent_s - zero_s, turn.ended_s - zero_s
        first_s = turn.sent_s + turn.to_first_token_s - zero_s
        has_text = turn.turn and turn.prompt_tokens
        found = f"{turn.cached_tokens / turn.prompt_tokens:.0%}" if has_text else ""
        spans += [Span("prefill", sent_s, first_s, found), Span("decode", first_s, ended_s)]
        if turn.tool_s:
            spans.append(Span("tool", ended_s, turn.ended_s + turn.tool_s - zero_s))
        lost_tokens = context_tokens - turn.cached_tokens
        if lost_tokens > max(_MIN_LOST_TOKENS, (1 - _LOST_SHARE) * context_tokens):
            marks.append(("lost", sent_s))
        if turn.error is not None:
            marks.append(("failed", ended_s))
        context_tokens = turn.prompt_tokens + turn.output_tokens
    return Lane(f"{job.job_id}\n{run.policy}", spans, marks, job.job_id)


def draw_record(jobs: Sequence[JobRecord], path: Path, *, title: str) -> Path:
    """Draw a server's event log of these jobs; OSError if writing fails."""
    end_s = max(job.ended_s for job in jobs)
    return draw_lanes(
        [_record_lane(job, end_s) for job in jobs],
        path,
        title=title,
        conditions=f"{len(jobs)} jobs as the server's own timestamps record has them",
        x_label="seconds from the first arrival shown",
    )


def _record_lane(job: JobRecord, end_s: float) -> Lane:
    """What has not ended lasts until the end of the picture."""
    spans = [span for turn in job.turns for span in _turn_spans(turn, end_s)]
    spans += [Span("gap", bubble.ended_s, bubble.arrived_s) for bubble in job.bubbles]
    marks: list[tuple[str, float]] = []
    for tool in job.tools:
        # the program that does the work: the server's own name may be that of a leading `cd`
        programs = analyze_command(tool.command).programs
        name = programs[0].key if programs else tool.name
        spans.append(Span("tool", tool.started_s, tool.ended_s or end_s, name))
    for pin in job.pins:
        kind = "pin_wasted" if pin.end in WASTED_ENDS else "pin_over"
        kind = "pin_kept" if pin.end in KEPT_ENDS else kind
        spans.append(Span(kind, pin.pinned_s, pin.ended_s or end_s))
    for turn in job.turns:
        if turn.lost_tokens and turn.started_s is not None:
            marks.append(("evicted", turn.started_s))
        if turn.is_aborted and turn.ended_s is not None:
            marks.append(("failed", turn.ended_s))
    if job.closed_s is not None:
        marks.append(("closed", job.closed_s))
    label = job.label if len(job.label) <= _MAX_LABEL_CHARS else f"…{job.label[-21:]}"
    return Lane(label, spans, marks)


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
