"""Which figures there are, and which of them a set of runs asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .against_load import DURATIONS, FIRST_TOKENS, HITS, draw_savings, draw_sweep
from .by_turn import draw_by_turn
from .cumulative import draw_cumulative
from .run_timeline import draw_run_timeline
from .runs import Group
from .side_by_side import draw_side_by_side
from .style import FigureError


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of figure; `is_swept`: it needs a load that varies."""

    what: str
    is_swept: bool = False


KINDS = {
    "sweep": Kind("mean and p99 duration against load", is_swept=True),
    "combined": Kind("the same for all GPUs at once", is_swept=True),
    "speedup": Kind("mean duration saved against load", is_swept=True),
    "ttft": Kind("time to first token against load", is_swept=True),
    "hits": Kind("hit rate against load", is_swept=True),
    "policies": Kind("policies side by side under the heaviest load"),
    "cdf": Kind("distribution of job durations"),
    "turns": Kind("latency turn by turn"),
    "timeline": Kind("the same jobs under each policy over time"),
}


@dataclass(frozen=True, slots=True)
class Drawing:
    """One figure to be drawn; `draw` raises FigureError where the runs are not enough for it."""

    kind: str
    file: str
    draw: Callable[[Path], Path]


def drawings(groups: Sequence[Group], kinds: Sequence[str], baseline: str) -> Iterator[Drawing]:
    """The figures of these kinds; FigureError if a kind asked for alone makes no sense here."""
    swept = [group for group in groups if len(group.loads) > 1]
    if not swept and all(KINDS[kind].is_swept for kind in kinds):
        raise FigureError(f"{', '.join(kinds)}: needs runs under more than one load (--jps)")
    for group in groups:
        yield from _of_one(group, kinds, baseline, is_swept=group in swept)
    for prefix, same in _by_prefix(swept).items():
        if "combined" in kinds:
            yield Drawing(
                "combined",
                f"{prefix}_sweep_combined.png",
                partial(draw_sweep, same, DURATIONS),
            )
        if "speedup" in kinds:
            yield Drawing(
                "speedup",
                f"{prefix}_sweep_speedup.png",
                partial(draw_savings, same, baseline),
            )


def _of_one(
    group: Group, kinds: Sequence[str], baseline: str, *, is_swept: bool
) -> Iterator[Drawing]:
    prefix, slug = _prefix(group), group.slug
    of_load = {
        "sweep": (f"{prefix}_sweep_{slug}.png", partial(draw_sweep, [group], DURATIONS)),
        "ttft": (f"ttft_{slug}.png", partial(draw_sweep, [group], FIRST_TOKENS)),
        "hits": (f"hit_rate_{slug}.png", partial(draw_sweep, [group], HITS)),
    }
    heaviest = group.at(group.loads[-1]) if group.loads else group
    of_jobs = {
        "policies": (f"policies_{slug}.png", partial(draw_side_by_side, heaviest, baseline)),
        "cdf": (f"duration_cdf_{slug}.png", partial(draw_cumulative, group)),
        "turns": (f"latency_by_turn_{slug}.png", partial(draw_by_turn, group)),
        "timeline": (f"timeline_{slug}.png", partial(draw_run_timeline, group, baseline=baseline)),
    }
    figures = {**of_load, **of_jobs} if is_swept else of_jobs
    for kind, (file, draw_one) in figures.items():
        if kind in kinds:
            yield Drawing(kind, file, draw_one)


def _prefix(group: Group) -> str:
    return group.setting.load_kind or "load"


def _by_prefix(groups: Sequence[Group]) -> dict[str, list[Group]]:
    by_prefix: dict[str, list[Group]] = {}
    for group in groups:
        by_prefix.setdefault(_prefix(group), []).append(group)
    return by_prefix
