"""Tables and the figure of the tournament's page, made from its findings alone.

A page holds `<!-- made: NAME -->` and `<!-- end -->`; what stands between them is replaced.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, LogNorm

from agentkv.errors import InputError
from agentkv.evals.figures.style import BLUE, FONT_PT, VERMILLION, common_style, new_figure, save
from agentkv.evals.tables import markdown_table

from .findings import Findings, Regime
from .regimes import (
    BOUNDS,
    DEFAULT_LIMIT_S,
    GATED,
    LIMITS_S,
    ORACLE,
    OURS,
    POOLS,
    SETTINGS,
    STOCK,
    label_of,
)

JOBS = {
    "swebench": "11 turns, tools of a second (`swebench`)",
    "longtail": "the same, one tool in twenty takes long (`longtail`)",
    "bfcl": "6 short turns, tools of 2 s, the GPU has time to spare (`bfcl`)",
    "deep-research": "sub-agents that share a prompt, long tool outputs (`deep-research`)",
    "coding": "29 turns behind a shared prompt of 20,000 tokens (`coding`)",
    "mixed": "as `swebench`, among people who chat (`mixed`)",
    "rollouts": "16 samples at once, 29 turns; the last one counts (`rollouts`)",
    "burst": "as `swebench`, eight at once (`burst`)",
}
"""Workloads in the words of somebody who looks for their own."""
DECISIVE = {"rollouts": "max_s"}
"""The figure to choose by, if not the mean: a training step waits for its last sample."""
_COLUMNS = {
    "mean": "mean_s",
    "p99": "p99_s",
    "max": "max_s",
    "slowdown p99": "slowdown_p99",
    "first TTFT p99": "ttft_first_p99_s",
    "later TTFT p99": "ttft_continuing_p99_s",
    "tokens/s": "tokens_per_s",
    "Jain": "jain",
}
_MOST_NAMED = 3


def tables(found: Findings) -> dict[str, str]:
    """Every made part of the page, by its name."""
    parts = {"played": _played, "which": _which, "goal": _goal, "best": _best, "sweep": _sweep}
    parts |= {"policies": _policies, "when": _when, "bound": _bound}
    made = {
        name: make(found) if found.played else "Not played yet." for name, make in parts.items()
    }
    return {**made, "loads": _loads()}


def fill(text: str, made: Mapping[str, str]) -> str:
    """The page with its made parts replaced; InputError for a part that is not made."""

    def part(match: re.Match[str]) -> str:
        if match[1] not in made:
            raise InputError(f"made: {match[1]}: allowed are {', '.join(made)}")
        return f"<!-- made: {match[1]} -->\n{made[match[1]]}\n<!-- end -->"

    return re.sub(r"<!-- made: (.*?) -->\n.*?<!-- end -->", part, text, flags=re.DOTALL)


def _played(found: Findings) -> str:
    """How much of the tournament the tables rest on."""
    numbers = Counter((regime.has_tier, len(seeds)) for regime, seeds in found.played.items())
    parts = [
        f"{number} regimes {'with' if has_tier else 'without'} a tier with {num_seeds} seed"
        + "s" * (num_seeds > 1)
        for (has_tier, num_seeds), number in sorted(numbers.items())
    ]
    failed = sum(row["error"] is not None for row in found.rows.values())
    return (
        f"Played by all policies: {', '.join(parts)}. {len(found.rows):,} runs in all, of which "
        f"{failed} failed."
    )


def _loads() -> str:
    """The load of each workload, and its pools."""
    rows = []
    for name, setting in SETTINGS.items():
        load = f"{setting.jps} a second" if setting.jps else f"{setting.concurrency} at once"
        rows.append([name, setting.num_jobs, load, *(f"{blocks:,}" for blocks in setting.pools)])
    return markdown_table(["workload", "jobs a run", "load", *POOLS], rows)


def _which(found: Findings) -> str:
    """By kind of job and memory: the simplest policy within 2% of the best."""
    rows = []
    for workload in SETTINGS:
        for has_tier in (False, True):
            of_it = [each for each in found.played if (each[0], each[2]) == (workload, has_tier)]
            short = [regime for regime in of_it if regime in found.pressured]
            roomy = [regime for regime in of_it if regime not in short]
            for memory, regimes in (("enough", roomy), ("short", short)):
                if regimes:
                    name = _choice(found, regimes)
                    pairs = [_mean_and_p99(found, regimes, each) for each in (name, OURS)]
                    memory += ", with a DRAM tier" if has_tier else ""
                    rows.append([JOBS[workload], memory, f"`{name}`", *pairs])
    titles = ["jobs", "memory", "choose", f"its mean, p99 over {STOCK}", f"`{OURS}`: mean, p99"]
    return markdown_table(titles, rows, left=3)


def _when(found: Findings) -> str:
    """Where memory is short, without a tier: each policy that is chosen, and for which jobs."""
    rows: dict[str, list[str]] = {}
    for workload in SETTINGS:
        short = [each for each in found.pressured if (each[0], each[2]) == (workload, False)]
        if short:
            name = _choice(found, short)
            rows.setdefault(name, []).append(f"`{workload}` ({_mean_and_p99(found, short, name)})")
    lines = [f"| choose | where memory is short, for (mean, p99 over `{STOCK}`) |", "|---|---|"]
    lines += [f"| `{name}` | {', '.join(jobs)} |" for name, jobs in rows.items()]
    return "\n".join(lines)  # not aligned: the README has few bytes to spare


def _choice(found: Findings, regimes: Sequence[Regime]) -> str:
    """Stock if it is within 2% of the best over these regimes of a workload, else ours if that is,
    else the best."""
    near = found.near_best(regimes, DECISIVE.get(regimes[0].workload, "mean_s"))
    return next((name for name in (STOCK, OURS) if name in near), near[0])


def _mean_and_p99(found: Findings, regimes: Sequence[Regime], name: str) -> str:
    return ", ".join(_ratio(found.over(regimes, name, key)) for key in ("mean_s", "p99_s"))


def _goal(found: Findings) -> str:
    num_regimes = len(found.played)
    near = sum(OURS in found.near_best([regime]) for regime in found.played)
    means, tails = (
        {regime: found.behind_best(regime, key) for regime in found.played}
        for key in ("mean_s", "p99_s")
    )
    mean_at, tail_at = max(means, key=means.__getitem__), max(tails, key=tails.__getitem__)
    lines = [
        f"- Best mean, or within 2% of it: {near} of {num_regimes} regimes (goal: nine of ten). "
        f"Furthest behind: {means[mean_at]:.2f} times the best, {_place(mean_at)}.",
        f"- p99 within 1.10 of the best: {sum(tail <= 1.1 for tail in tails.values())} of "
        f"{num_regimes} regimes (goal: all). Furthest behind: {tails[tail_at]:.2f}, "
        f"{_place(tail_at)}.",
    ]
    for has_tier in (False, True):
        regimes = [regime for regime in found.pressured if regime.has_tier == has_tier]
        if regimes:
            ours, (name, theirs) = found.standing(regimes)[OURS], found.best_rule(regimes)
            lines.append(
                f"- Over the {len(regimes)} regimes under pressure "
                f"{'with' if has_tier else 'without'} a tier its mean is {_ratio(ours)} of "
                f"`{STOCK}`'s, that of the best other rule, "
                f"`{name}`, {_ratio(theirs)}: {_ratio(ours / theirs)} of it (goal: .90 or less)."
            )
    return "\n".join(lines)


def _place(regime: Regime) -> str:
    return f"`{regime.workload}`, {regime.pool} pool{' with a tier' if regime.has_tier else ''}"


def _best(found: Findings) -> str:
    """Each regime: who is best, and where we are."""
    rows = []
    for regime, seeds in found.played.items():
        mean, tail = found.standing([regime]), found.standing([regime], "p99_s")
        (best, best_mean), (best_tail, best_p99) = (
            next(iter(mean.items())),
            next(iter(tail.items())),
        )
        spread = found.ratios(regime, OURS, "mean_s")
        ahead = [f"{name} {_ratio(each)}" for name, each in found.ahead_of_ours(regime).items()]
        more = len(ahead) - _MOST_NAMED
        mark = "" if regime in found.pressured else " (enough)"
        rows.append(
            [
                regime.workload,
                regime.pool + " + tier" * regime.has_tier + mark,
                len(seeds),
                f"{best} {_ratio(best_mean)}",
                f"{_ratio(mean[OURS])} ({_ratio(min(spread))} to {_ratio(max(spread))})",
                _ratio(found.behind_best(regime, "mean_s")),
                f"{best_tail} {_ratio(best_p99)}",
                _ratio(tail[OURS]),
                _ratio(found.behind_best(regime, "p99_s")),
                ", ".join(ahead[:_MOST_NAMED]) + f" and {more} more" * (more > 0) or "-",
            ]
        )
    titles = [
        *("workload", "pool", "seeds", "best mean", f"{OURS}: mean", "over the best", "best p99"),
        *(f"{OURS}: p99", "over the best", f"ahead of {OURS} on every seed, over its mean"),
    ]
    return markdown_table(titles, rows, left=2)


def _policies(found: Findings) -> str:
    """Each policy over the regimes under pressure, without and with a tier."""
    blocks = []
    for has_tier in (False, True):
        of_it = [regime for regime in found.played if regime.has_tier == has_tier]
        short = [regime for regime in of_it if regime in found.pressured]
        if not short:
            continue
        near = Counter(name for regime in of_it for name in found.near_best([regime]))
        rows = []
        for name in [*found.standing(short), *[ORACLE] * (not has_tier)]:
            each = [found.over([regime], name, "mean_s") or 0.0 for regime in of_it]
            counted = "-" if name == ORACLE else f"{near[name]} of {len(of_it)}"
            ratios = [_ratio(found.over(short, name, key)) for key in _COLUMNS.values()]
            rows.append([name, *ratios, _ratio(max(each)), counted])
        tier = "with a DRAM tier, over fcfs with it" if has_tier else "without a tier"
        titles = ["policy", *_COLUMNS, "worst mean of any regime", "within 2% of the best mean"]
        title = f"**Under pressure, {tier}** ({len(short)} of {len(of_it)} regimes):"
        blocks.append(f"{title}\n\n{markdown_table(titles, rows)}")
    return "\n\n".join(blocks)


def _sweep(found: Findings) -> str:
    """Mean and p99 over stock's by the limit of forced resume."""
    limits_s = (*LIMITS_S, DEFAULT_LIMIT_S)
    rows = []
    for policy in GATED:
        num_runs, by_limit = found.sweep(policy)
        if num_runs:
            pairs = [f"{_ratio(mean)}, {_ratio(tail)}" for mean, tail in by_limit.values()]
            rows.append([label_of(policy), num_runs, *pairs])
    titles = ["rule", "runs", *(f"{limit_s:,} s" for limit_s in limits_s)]
    return markdown_table(titles, rows) if rows else "Not played yet."


def _bound(found: Findings) -> str:
    """What the same jobs take if no memory is lost, or each job's cost is known."""
    num_runs, means = found.bounded()
    if not num_runs:
        return "Not played yet."
    rules = means.keys() - {OURS, STOCK, ORACLE, *BOUNDS}
    best = min(rules, key=means.__getitem__)
    rows = [
        [name, _ratio(means[name]), _ratio(means[name] / means[best])]
        for name in (best, OURS, ORACLE, *BOUNDS)
    ]
    titles = [f"{num_runs} runs under pressure", f"mean over {STOCK}'s", f"over {best}'s"]
    return markdown_table(titles, rows)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}".removeprefix("0")


def draw(found: Findings, path: Path) -> None:
    """Mean job durations over stock's, of each policy in each regime."""
    regimes = list(found.played)
    order = [*found.standing(found.pressured or regimes), ORACLE]
    ratios = np.array(
        [[found.over([regime], name, "mean_s") or np.nan for regime in regimes] for name in order]
    )
    colours = LinearSegmentedColormap.from_list("over stock", [BLUE, "white", VERMILLION])
    with common_style():
        figure = new_figure(max(6.0, 2.6 + 0.4 * len(regimes)), 2.2 + 0.2 * len(order))
        axes = figure.subplots()
        axes.imshow(ratios, cmap=colours, norm=LogNorm(0.5, 2.0), aspect="auto")
        for (y, x), value in np.ndenumerate(ratios):
            if not np.isnan(value):
                weight = "bold" if value == np.nanmin(ratios[:-1, x]) else "normal"
                at_centre = {"ha": "center", "va": "center"}
                axes.text(x, y, _ratio(value), size=FONT_PT - 3, weight=weight, **at_centre)
        labels = [f"{each[0]} {each[1]}{' + tier' * each[2]}" for each in regimes]
        axes.set_xticks(range(len(labels)), labels, rotation=90, fontsize=FONT_PT - 2)
        axes.set_yticks(range(len(order)), order, fontsize=FONT_PT - 2)
        axes.set_title(f"Mean job duration over {STOCK}'s; bold: the best of a regime")
        axes.grid(visible=False)
        conditions = (
            "H100 with llama-3.1-8b, simulated; geometric means over seeds\nrows by their mean "
            f"under pressure; commits {', '.join(found.commits)}"
        )
        save(figure, path, conditions=conditions)
