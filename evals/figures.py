"""Draws a table of runs with seaborn; each figure takes the runs of one setting.

Points and bars are means over repeats and seeds, with the least and the largest of them. A policy
has the same colour in every figure. Drawn without pyplot's windows, so no display is needed, and
the same rows give the same bytes.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from agentkv.errors import InputError

from .outcomes import JobOutcome
from .run_table import LOADS, conditions, heaviest

BLACK, GREY = "#000000", "#767676"
BLUE, ORANGE, GREEN, VERMILLION, PURPLE, BROWN, PINK, _, _, SKY = sns.color_palette(
    "colorblind"
).as_hex()
COLOURS = {
    "fcfs": BLACK,
    "continuum": BLUE,
    "continuum:released": SKY,
    "continuum:paper": BLUE,
    "context_serve": ORANGE,
    "agentkv": VERMILLION,
    "fcfs+offload": GREEN,
    "fcfs@infinite": GREY,
    "priority": PURPLE,
}
"""Policies in the order of a legend, fcfs first; others have what is left of the palette."""
_SPARE = (PURPLE, GREEN, BROWN, PINK)
_STYLE = {
    "svg.hashsalt": "agentkv",
    "svg.fonttype": "none",
    "axes.titlelocation": "left",
    "legend.frameon": False,
}
_CHARS_PER_IN = 17
_PANEL_IN = (4.2, 3.2)
_ROOM_FOR_TEXT = 1.7
_LOG_RATIO = 20
"""Ranges wider than this are drawn on a logarithmic axis."""
QUANTITIES = {
    "mean_s": "mean job duration, seconds",
    "p99_s": "p99 of job durations, seconds",
    "ttft_first_p99_s": "first turns: p99 to first token, seconds",
    "ttft_continuing_p99_s": "later turns: p99 to first token, seconds",
    "hit_rate": "later turns' prompts in the cache, %",
    "jobs_per_hour": "jobs an hour",
}
"""Numbers of a run's summary that are drawn, with the label of their axis."""


def in_order(policies: Iterable[str]) -> list[str]:
    """Each policy once: the known ones first, fcfs leading, then the others by name."""
    found = set(policies)
    return [name for name in dict.fromkeys([*COLOURS, *sorted(found)]) if name in found]


def colours(policies: Iterable[str]) -> dict[str, str]:
    """A colour a policy, the same in every figure for those that are known."""
    names = in_order(policies)
    unknown = [name for name in names if name not in COLOURS]
    return {name: COLOURS.get(name) or _SPARE[unknown.index(name) % len(_SPARE)] for name in names}


def draw_policies(runs: pd.DataFrame, baseline: str, path: Path) -> Path:
    """Draw the policies side by side under the heaviest load: a bar each, a dot a run."""
    runs = heaviest(runs)
    shown = [name for name in QUANTITIES if name in runs and runs[name].notna().any()]
    has_runs = "repeats" not in runs
    note = "bars: means" + ("; dots: runs" if has_runs else "")
    num_rows = -(-len(shown) // 3)
    height = num_rows * (0.3 + 0.09 * runs["policy"].nunique())
    with _panels(min(3, len(shown)), num_rows, runs, path, height=height, note=note) as panels:
        for axes, name in zip(panels, shown, strict=False):
            table = runs.assign(value=_values(runs, name))
            order = in_order(table["policy"])
            look = {"y": "policy", "x": "value", "order": order, "ax": axes}
            palette = colours(order)
            sns.barplot(table, hue="policy", palette=palette, alpha=0.4, errorbar=None, **look)
            if has_runs:
                sns.stripplot(table, hue="policy", palette=palette, jitter=False, **look)
            axes.set(xlabel=QUANTITIES[name], ylabel="")
            means = table.groupby("policy")["value"].mean()
            axes.set_xlim(0.0, _ROOM_FOR_TEXT * table["value"].max() or 1.0)
            for place, policy in enumerate(order):
                text = compared(means[policy], means.get(baseline), is_share=name == "hit_rate")
                axes.text(0.99, place, text, transform=axes.get_yaxis_transform(), ha="right")
    return path


def compared(value: float, base: float | None, *, is_share: bool) -> str:
    """How far a value is from another: `16% less`, `4 times`, or of shares `27 points more`."""
    if not base or value == base:
        return ""
    if value >= 3 * base and not is_share:
        return f"{value / base:.0f} times"
    change = value - base
    size = f"{abs(change):.0f} points" if is_share else f"{abs(change) / base:.0%}"
    return f"{size} {'less' if change < 0 else 'more'}"


def draw_sweep(runs: pd.DataFrame, baseline: str, path: Path) -> Path:
    """Draw durations, times to first token and hits of each policy against the load."""
    _needs_loads(runs)
    shown = [name for name in QUANTITIES if name in runs and runs[name].notna().any()]
    with _panels(min(3, len(shown)), -(-len(shown) // 3), runs, path) as panels:
        for axes, name in zip(panels, shown, strict=False):
            table = runs.assign(value=_values(runs, name))
            _draw_lines(axes, table, QUANTITIES[name])
            means = table.groupby(["policy", "load"])["value"].mean()
            if name == "hit_rate":
                axes.set_ylim(0, 100)
            elif means.min() > 0 and means.max() / means.min() > _LOG_RATIO:
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter("{x:g}")
            else:
                axes.set_ylim(bottom=0.0)
    return path


def draw_saved(runs: pd.DataFrame, baseline: str, path: Path) -> Path:
    """Draw how much shorter the mean job is than the baseline's, run by run of the same jobs."""
    _needs_loads(runs)
    table = saved(runs, baseline)
    with _panels(1, 1, runs, path, width_in=6.0) as (axes,):
        _draw_lines(axes, table, f"mean job shorter than {baseline}'s by, %")
        axes.axhline(0.0, color=GREY, linewidth=1.0)
    return path


def saved(runs: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """`value` in percent of the baseline; where it lacks the seed and repeat, of its mean."""
    is_base = runs["policy"] == baseline
    base, others = runs[is_base], runs[~is_base]
    if base.empty or others.empty:
        raise InputError(f"needs runs of {baseline} and of another policy")
    means = base.groupby("load")["mean_s"].mean()
    keys = ["load", "seed", "repeat"]
    paired = base.drop_duplicates(keys).set_index(keys)["mean_s"]
    places = pd.MultiIndex.from_frame(others[keys])
    reference = paired.reindex(places).to_numpy()
    table = others.assign(reference=reference)
    table["reference"] = table["reference"].fillna(table["load"].map(means))
    return table.assign(value=100.0 * (1.0 - table["mean_s"] / table["reference"]))


def draw_within(runs: pd.DataFrame, baseline: str, path: Path) -> Path:
    """Draw the share of jobs that are done within T seconds under the heaviest load."""
    runs = heaviest(runs)
    table = pd.DataFrame(
        [
            {"policy": row.policy, "duration_s": duration_s}
            for row in runs.itertuples()
            for duration_s in [*row.job_durations, *[math.inf] * (row.jobs - row.completed)]
        ]
    )
    if table.empty:
        raise InputError("needs the durations of jobs")
    order = in_order(table["policy"])
    note = "jobs of all runs together"
    with _panels(1, 1, runs, path, width_in=6.0, note=note) as (axes,):
        look = {"hue": "policy", "hue_order": order, "palette": colours(order)}
        sns.ecdfplot(table, x="duration_s", ax=axes, **look)
        longest_s = table["duration_s"][table["duration_s"] < math.inf].max()
        axes.set(xlim=(0.0, 1.03 * longest_s), ylim=(0.0, 1.0))
        axes.set(xlabel="T, seconds", ylabel="share of jobs done within T")
    return path


PHASES = (
    ("a turn waits for its first token", VERMILLION),
    ("its reply is generated", BLUE),
    ("its tool runs", "#d9d9d9"),
)


def draw_jobs(runs: pd.DataFrame, baseline: str, path: Path) -> Path:
    """Draw the jobs of each policy's first run over time: a line a job, its turns in colours."""
    runs = heaviest(runs).drop_duplicates("policy")
    if not all(runs["outcomes"].map(len)):
        raise InputError("needs the turns of jobs")
    by_policy = {row.policy: row.outcomes for row in runs.itertuples()}
    titles = {
        row.policy: f"{row.policy}: mean job {row.mean_s:.0f} s, "
        f"{row.cached_tokens / row.prompt_tokens:.0%} of prompt tokens from the cache"
        for row in runs.itertuples()
    }
    num_jobs = max(map(len, by_policy.values()))
    note = "the first run of each policy"
    height_in = len(by_policy) * (0.7 + 0.2 * num_jobs) / _PANEL_IN[1]
    with _panels(
        1, len(by_policy), runs, path, width_in=8.0, height=height_in, note=note
    ) as panels:
        for axes, policy in zip(panels, in_order(by_policy), strict=True):
            for place, job in enumerate(by_policy[policy]):
                for (_, colour), spans in zip(PHASES, _spans(job), strict=True):
                    axes.broken_barh(spans, (place - 0.4, 0.8), facecolors=colour)
            axes.set(
                title=titles[policy], yticks=range(num_jobs), yticklabels=range(1, num_jobs + 1)
            )
            axes.set(ylim=(num_jobs - 0.5, -0.5), ylabel="job")
            axes.grid(axis="y", visible=False)
            axes.sharex(panels[0])
            axes.set_xlim(left=0.0)
        panels[-1].set_xlabel("seconds")
        for what, colour in PHASES:
            panels[0].plot([], [], color=colour, linewidth=6, label=what)
        panels[0].legend()
    return path


def _spans(job: JobOutcome) -> list[list[tuple[float, float]]]:
    """Start and length of each phase of the job's turns."""
    return [
        [(turn.sent_s, turn.to_first_token_s) for turn in job.turns],
        [(turn.ended_s - turn.decode_s, turn.decode_s) for turn in job.turns],
        [(turn.ended_s, turn.tool_s) for turn in job.turns],
    ]


Draw = Callable[[pd.DataFrame, str, Path], Path]
KINDS: dict[str, tuple[Draw, str]] = {
    "policies": (draw_policies, "policies side by side under the heaviest load"),
    "sweep": (draw_sweep, "durations, times to first token and hits against load"),
    "saved": (draw_saved, "how much shorter the mean job is than the baseline's, against load"),
    "within": (draw_within, "share of jobs that are done within T seconds"),
    "jobs": (draw_jobs, "the jobs of one run of each policy over time"),
}
"""What draws each kind of figure, and what it shows; InputError where the runs are not enough."""


@contextmanager
def _panels(
    num_columns: int,
    num_rows: int,
    runs: pd.DataFrame,
    path: Path,
    *,
    width_in: float | None = None,
    height: float | None = None,
    note: str = "error bars: least to largest run",
) -> Iterator[list[Any]]:
    """Panels to draw on, in rows; then one legend above them, and the file."""
    width_in = width_in or _PANEL_IN[0] * num_columns
    height_in = _PANEL_IN[1] * (height or num_rows) + 0.6
    style = sns.axes_style("whitegrid") | sns.plotting_context("paper") | _STYLE
    with mpl.rc_context(style):
        figure: Any = Figure(figsize=(width_in, height_in), layout="constrained")
        panels = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
        yield panels
        handles: dict[str, Any] = {}
        for axes in panels:
            if not axes.has_data():
                axes.set_axis_off()
            legend = axes.get_legend()
            if legend is not None:
                texts = [text.get_text() for text in legend.get_texts()]
                handles |= dict(zip(texts, legend.legend_handles, strict=True))
                legend.remove()
        if handles:
            columns = {"ncols": min(4, len(handles)), "loc": "outside upper center"}
            figure.legend(handles.values(), handles.keys(), **columns)
        text = textwrap.fill(f"{conditions(runs)}; {note}", int(width_in * _CHARS_PER_IN))
        figure.supxlabel(text, fontsize=7, color=GREY, x=0.01, ha="left")
        path.parent.mkdir(parents=True, exist_ok=True)
        # without its date and maker a file depends on its rows alone
        unnamed = {"Date": None, "Creator": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(path, dpi=160, metadata=unnamed)


def _draw_lines(axes: Any, table: pd.DataFrame, label: str) -> None:
    """Draw a line a policy over the loads, with a tick at each of them."""
    order = in_order(table["policy"])
    sns.lineplot(
        table,
        x="load",
        y="value",
        hue="policy",
        style="policy",
        hue_order=order,
        style_order=order,
        palette=colours(order),
        markers=True,
        dashes=False,
        errorbar=("pi", 100),
        err_style="bars",
        ax=axes,
    )
    loads = sorted(set(table["load"]))
    if loads[0] > 0 and loads[-1] / loads[0] > _LOG_RATIO:
        axes.set_xscale("log")
    if len(loads) <= 12:
        axes.set_xticks(loads, [f"{load:g}" for load in loads], minor=False)
    axes.set(xlabel=_load_label(table), ylabel=label)


def _values(runs: pd.DataFrame, name: str) -> pd.Series:
    return runs[name].astype(float) * (100.0 if name == "hit_rate" else 1.0)


def _load_label(runs: pd.DataFrame) -> str:
    kinds = list(dict.fromkeys(runs["load_kind"].dropna()))
    return LOADS.get(kinds[0], "load") if kinds else "load"


def _needs_loads(runs: pd.DataFrame) -> None:
    if runs["load"].nunique() < 2:
        raise InputError("needs runs under more than one load (--jps)")
