"""Jobs over time, a lane for each: when it queued, ran, used tools, and held memory meanwhile.

Knows spans and marks, not where they come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.patches import Patch

from .style import (
    BLUE,
    FONT_PT,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    SKY,
    VERMILLION,
    FigureError,
    common_style,
    new_figure,
    save,
)


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasted; `kind` is a key of KINDS, `text` is written on it where it fits."""

    kind: str
    start_s: float
    end_s: float
    text: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at one time."""

    kind: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Lane:
    """One job's row."""

    label: str
    spans: tuple[Span, ...]
    marks: tuple[Mark, ...] = ()
    group: str = ""
    """Lanes of another group are set off by a line."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a kind of span is drawn: its place in the lane (0 to 1, upwards), and its colours."""

    label: str
    bottom: float
    height: float
    color: str
    ink: str = "white"
    hatch: str | None = None


KINDS = {
    "queued": Kind("queued", 0.36, 0.44, LIGHT, "black"),
    "prefill": Kind(
        "queued and prefill (share of the prompt found in the cache)", 0.36, 0.44, SKY, "black"
    ),
    "running": Kind("running (share of the prompt found in the cache)", 0.36, 0.44, BLUE),
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
    "evicted": ("cache was gone", "v", VERMILLION),
    "lost": ("found less than half of its context", "v", VERMILLION),
    "failed": ("failed or aborted", "X", VERMILLION),
    "closed": ("job over", "|", "black"),
}
_LANE_IN = 0.62
WIDTH_IN = 11.0
_CHAR_IN = 0.075
"""Width of a character of the text on spans; what does not fit is left out."""


def draw_lanes(
    lanes: Sequence[Lane],
    path: Path,
    *,
    title: str,
    conditions: str,
    x_label: str = "seconds from the first arrival shown",
) -> Path:
    """Write the picture; FigureError if there is nothing to draw, OSError if writing fails."""
    lanes = [lane for lane in lanes if lane.spans]
    if not lanes:
        raise FigureError(f"{title}: no job with a turn, a tool or a pin to draw")
    with common_style():
        figure = new_figure(WIDTH_IN, 1.5 + _LANE_IN * max(len(lanes), 2))
        axes = figure.subplots()
        start_s = min(span.start_s for lane in lanes for span in lane.spans)
        end_s = max(span.end_s for lane in lanes for span in lane.spans)
        second_in = 0.85 * WIDTH_IN / max(end_s - start_s, 1e-9)
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
        _draw_legend(figure, axes, lanes)
        return save(figure, path, conditions=conditions)


def _draw_lane(axes: Any, lane: Lane, bottom: int, start_s: float, second_in: float) -> None:
    for name, kind in KINDS.items():
        for span in lane.spans:
            if span.kind == name:
                _draw_span(axes, span, kind, bottom, start_s, second_in)
    for mark in lane.marks:
        _, marker, color = MARKS[mark.kind]
        height = 0.90 if mark.kind in ("evicted", "lost") else 0.58
        axes.plot(
            mark.at_s - start_s,
            bottom + height,
            marker,
            color=color,
            markersize=9 if mark.kind == "closed" else 7,
            zorder=5,
            clip_on=False,
        )


def _draw_span(
    axes: Any, span: Span, kind: Kind, bottom: int, start_s: float, second_in: float
) -> None:
    width_s = span.end_s - span.start_s
    axes.broken_barh(
        [(span.start_s - start_s, width_s)],
        (bottom + kind.bottom, kind.height),
        facecolor=kind.color,
        hatch=kind.hatch,
        edgecolor=GREY if kind.hatch else "none",
        linewidth=0.4,
        zorder=3,
    )
    if span.text and len(span.text) * _CHAR_IN <= width_s * second_in:
        is_tool = span.kind in ("tool", "gap")
        axes.text(
            span.start_s - start_s + width_s / 2,
            bottom
            + (kind.bottom + kind.height + 0.12 if is_tool else kind.bottom + kind.height / 2),
            span.text,
            ha="center",
            va="center",
            fontsize=FONT_PT - 2,
            color=kind.ink,
            zorder=4,
        )


def _draw_legend(figure: Any, axes: Any, lanes: Sequence[Lane]) -> None:
    used = {span.kind for lane in lanes for span in lane.spans}
    handles: list[Any] = [
        Patch(
            facecolor=kind.color,
            hatch=kind.hatch,
            edgecolor=GREY if kind.hatch else "none",
            label=kind.label,
        )
        for name, kind in KINDS.items()
        if name in used
    ]
    for name in sorted({mark.kind for lane in lanes for mark in lane.marks}):
        label, marker, color = MARKS[name]
        handles += axes.plot([], [], marker, color=color, label=label)
    figure.legend(handles=handles, loc="outside upper center", ncols=4, fontsize=FONT_PT - 1)
