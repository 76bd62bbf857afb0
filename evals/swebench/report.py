"""Compares graded runs: pass rate, completion times, cache; as JSON, Markdown and one figure.

Called by the commands `report` and `demo`. `compare` reads the folders of runs into one document;
the page and the figure are made from that document alone.
"""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import binomtest

from ..figures.style import common_style, in_order, legend_above, look, panel_grid, save
from ..rows import require_free, write_whole
from ..summary import describe_durations, mean
from ..tables import cell, markdown_table
from .folder import ERROR_PREFIX, SwebenchRun, read_run
from .grading import patch_sha256, read_eval
from .harness import STATUSES
from .instances import DAEMON_LESS, SwebenchError

MARKDOWN_FILE, JSON_FILE, FIGURE_FILE = "report.md", "report.json", "report.png"
_DAEMON_LESS_LABEL = "daemon-less: the eval script in bubblewrap, the harness's grading, no image"
_DAEMON_LESS_WARNING = (
    "**daemon-less grading**: not a result of the official evaluation, which runs in the "
    "instances' images"
)
_MAX_REASONS = 40
_SHARES = ("mean", "p50", "p90", "p99", "max")
_ROWS = (
    *((f"JCT {name}", f"jct_{name}_s", ".1f", " s") for name in _SHARES),
    ("turns per job", "turns_mean", ".1f", ""),
    *((f"turn latency {name}", f"turn_llm_{name}_s", ".2f", " s") for name in _SHARES),
    ("tool time mean", "turn_tool_mean_s", ".2f", " s"),
    ("cached share, continuing turns", "cached_share", ".1%", ""),
    ("cached share, first turns", "cached_share_first", ".1%", ""),
    ("prompt tokens", "prompt_tokens", ",", ""),
    ("output tokens", "output_tokens", ",", ""),
    ("preemptions", "preemptions", ",", ""),
)
"""Heading, name of the number, format, unit."""
_TURN_FIELDS = ("turn", "llm_s", "tool_s", "prompt_tokens", "cached_tokens", "output_tokens")
_PANEL_IN = (4.4, 2.9)
_CHARS_PER_IN = 19
_MIN_INSTANCES = 0.2
"""Turns that fewer than this share of the jobs reached are not drawn: they tell of few jobs."""

Entry = dict[str, Any]
"""One run in the document, all its numbers flat."""


def report(
    folders: Sequence[Path], out: Path, *, baseline: str | None = None, is_forced: bool = False
) -> dict[str, Any]:
    """Write the three files, and return the content of the JSON one.

    A run's own folder is written again without asking; elsewhere an existing report stays unless
    `is_forced`. Raises InputError for that, and SwebenchError for runs on different instances.
    """
    document = compare(folders, baseline)
    require_free(out / JSON_FILE, force=is_forced or out in folders)
    out.mkdir(parents=True, exist_ok=True)
    files = {"markdown": MARKDOWN_FILE, "json": JSON_FILE, "figure": FIGURE_FILE}
    document["files"] = {kind: str(out / name) for kind, name in files.items()}
    draw(document, out / FIGURE_FILE)
    write_whole(out / MARKDOWN_FILE, page(document))
    write_whole(out / JSON_FILE, json.dumps(document, indent=1) + "\n")
    return document


def compare(folders: Sequence[Path], baseline: str | None = None) -> dict[str, Any]:
    """Read the runs, stock policies first; raises SwebenchError if their instances differ.

    `baseline` names the run or policy that ratios are to; default fcfs, or the first run.
    """
    runs = [read_run(folder) for folder in folders]
    for other in runs[1:]:
        _check_same_instances(runs[0], other)
    order = in_order([run.policy for run in runs])
    runs.sort(key=lambda run: order.index(run.policy))
    counts = Counter(run.policy for run in runs)
    entries = [
        _entry(run, run.policy if counts[run.policy] == 1 else f"{run.policy} {run.run_id}")
        for run in runs
    ]
    chosen = [one for one in entries if baseline in (None, one["name"], one["policy"])]
    if not chosen:
        allowed = ", ".join(one["name"] for one in entries)
        raise SwebenchError(f"--baseline: got {baseline!r}, the runs are {allowed}")
    for entry in entries:
        _relate(entry, chosen[0])
    conditions = [*_facts(runs), *_warnings(runs, entries)]
    return {"baseline": chosen[0]["name"], "conditions": conditions, "runs": entries}


def _entry(run: SwebenchRun, name: str) -> Entry:
    facts, graded = read_eval(run.folder) or ({}, {})
    verdicts = {  # a resumed run may have other patches than those that were graded
        one: graded[one]
        for one in run.instance_ids
        if one in graded and graded[one].patch_sha256 == patch_sha256(run.patch(one))
    }
    total = len(run.instance_ids)
    counts = Counter(verdict.status for verdict in verdicts.values())
    rates: Entry = dict.fromkeys(("pass_rate", "pass_rate_low", "pass_rate_high"))
    if facts and 0 < counts.total() == total:  # it is of all instances of the run
        found = binomtest(counts["resolved"], total)
        low, high = found.proportion_ci(0.95, method="wilson")
        rates = dict(zip(rates, map(float, (found.statistic, low, high)), strict=True))
    return {
        "name": name,
        "policy": run.policy,
        "run_id": run.run_id,
        "run": str(run.folder),
        "mode": facts.get("mode"),
        "harness_version": facts.get("harness_version"),
        "instances": total,
        **{status: counts[status] if facts else None for status in STATUSES},
        "not_graded": total - counts.total(),
        **rates,
        **_numbers(run),
        "results": {one: asdict(verdict) for one, verdict in verdicts.items()},
    }


def _numbers(run: SwebenchRun) -> Entry:
    """Times in seconds and tokens, of instances whose agent ended by itself or at a limit."""
    rows = [run.rows[name] for name in run.instance_ids if name in run.rows]
    ended = [row for row in rows if not row["exit_status"].startswith(ERROR_PREFIX)]
    jobs_s = sorted(row["end_s"] - row["start_s"] for row in ended)
    turns = pd.DataFrame([turn for row in ended for turn in row["turns"]], columns=_TURN_FIELDS)
    by_turn = [same for _, same in turns.groupby("turn")]
    # the first turn of a job has no tokens of its own to find again
    is_first = turns["turn"] == 1
    stats = run.document.get("server_stats") or {}  # None under a stock policy
    pins = stats.get("pins_total")
    return {
        "completed": len(ended),
        "failed": len(rows) - len(ended),
        "not_run": len(run.instance_ids) - len(rows),
        "exit_statuses": dict(Counter(row["exit_status"] for row in rows).most_common()),
        "jobs_s": jobs_s,
        **_durations("jct", jobs_s),
        "turns_mean": mean([len(row["turns"]) for row in ended]),
        **_durations("turn_llm", turns["llm_s"]),
        **_durations("turn_tool", turns["tool_s"]),
        "per_turn_llm_mean_s": [mean(same["llm_s"]) for same in by_turn],
        "per_turn_cached_share": [_cached_share(same) for same in by_turn],
        "per_turn_instances": [float(len(same)) for same in by_turn],
        "prompt_tokens": int(turns["prompt_tokens"].sum()),
        "output_tokens": int(turns["output_tokens"].sum()),
        "cached_share": _cached_share(turns[~is_first]),
        "cached_share_first": _cached_share(turns[is_first]),
        "pins": None if pins is None else sum(pins.values()),
        "pin_ends": stats.get("pin_ends_total"),
        "preemptions": stats.get("preemptions_total"),
    }


def _durations(name: str, values: Any) -> dict[str, float | None]:
    found = describe_durations(values)
    return {f"{name}_{share}_s": found[f"{share}_s"] for share in _SHARES}


def _cached_share(turns: pd.DataFrame) -> float | None:
    """Divide cached by prompt tokens, over the turns whose server reported cached ones."""
    told = turns.dropna(subset="cached_tokens")
    prompt_tokens = told["prompt_tokens"].sum()
    return float(told["cached_tokens"].sum() / prompt_tokens) if prompt_tokens else None


def _relate(entry: Entry, baseline: Entry) -> None:
    """Add the ratios to the baseline, and the instances resolved in one of both only."""
    names = [f"jct_{share}_s" for share in _SHARES]
    entry["ratios"] = {
        name: entry[name] / baseline[name]
        if entry is not baseline and baseline[name] and entry[name]
        else None
        for name in names
    }
    here, there = (
        {name for name, result in one["results"].items() if result["status"] == "resolved"}
        for one in (entry, baseline)
    )
    is_known = entry["pass_rate"] is not None and baseline["pass_rate"] is not None
    entry["resolved_only_here"] = len(here - there) if is_known else None
    entry["resolved_only_in_baseline"] = len(there - here) if is_known else None


def _check_same_instances(first: SwebenchRun, other: SwebenchRun) -> None:
    ones, others = set(first.instance_ids), set(other.instance_ids)
    shas = [run.document.get("dataset_sha256") for run in (first, other)]
    if apart := sorted(ones ^ others):
        why = f"instances: {len(apart)} are in one only, such as {', '.join(apart[:3])}"
    elif shas[0] != shas[1]:
        why = f"dataset: its sha256 is {shas[0]} and {shas[1]}"
    else:
        return
    raise SwebenchError(
        f"{first.folder} and {other.folder} are not of the same {why}: run both on the same "
        "--instances, --slice and --filter"
    )


def _listed(runs: Sequence[SwebenchRun], name: str) -> str:
    return ", ".join(dict.fromkeys(str(run.document.get(name, "-")) for run in runs))


def _facts(runs: Sequence[SwebenchRun]) -> list[str]:
    names = ("model", "environment", "step_limit", "seed", "commit")
    facts = [f"{name.replace('_', ' ')} {_listed(runs, name)}" for name in names]
    loads = [
        f"{one.get('workers')} at once" if one.get("jps") is None else f"{one['jps']:g} jobs/s"
        for one in (run.document for run in runs)
    ]
    return [
        f"{len(runs[0].instance_ids)} instances of {_listed(runs, 'dataset')}",
        "; ".join([*facts, f"load {', '.join(dict.fromkeys(loads))}"]),
        "JCT: seconds from an instance's start to its agent's end, of agents that ended",
    ]


def _warnings(runs: Sequence[SwebenchRun], entries: Sequence[Entry]) -> list[str]:
    """Return what a reader must know before comparing."""
    found = []
    if any(one["mode"] == DAEMON_LESS for one in entries):
        found.append(_DAEMON_LESS_WARNING)
    if len(set(map(_graded_by, entries))) > 1:
        found.append("**the runs were not graded alike**: see the row `graded`")
    for name in ("model", "environment", "step_limit", "seed", "workers", "jps"):
        if len({str(run.document.get(name)) for run in runs}) > 1:
            found.append(f"**the runs differ in {name}**: {_listed(runs, name)}")
    in_part = [one for one in entries if one["mode"] is not None and one["not_graded"]]
    if in_part:
        named = ", ".join(f"{one['name']}: {one['not_graded']} patches" for one in in_part)
        rest = "`agentkv swebench eval` goes on with them"
        found.append(f"**not graded yet**, so no pass rate: {named}; {rest}")
    pairs = zip(runs, entries, strict=True)
    if unfinished := [one["name"] for run, one in pairs if run.document.get("ended_at") is None]:
        found.append(f"**not run to its end**: {', '.join(unfinished)}")
    return found


def page(document: Mapping[str, Any]) -> str:
    """Return the report as Markdown, a column a run."""
    runs: Sequence[Entry] = document["runs"]
    apart = [
        f"- {one['name']}: {one['resolved_only_here']} resolved here and not under "
        f"{document['baseline']}, {one['resolved_only_in_baseline']} the other way round"
        for one in runs
        if one["name"] != document["baseline"] and one["resolved_only_here"] is not None
    ]
    reasons = [
        f"- {one['name']}, `{name}`: {result['status']}: {' '.join(result['detail'].split())}"
        for one in runs
        for name, result in one["results"].items()
        if result["status"] in ("error", "empty")
    ]
    if len(reasons) > _MAX_REASONS:
        reasons[_MAX_REASONS:] = [f"- ... {len(reasons) - _MAX_REASONS} more in `{JSON_FILE}`"]
    parts = [
        "# SWE-bench: pass rate, completion time and cache",
        "\n".join(f"- {line}" for line in document["conditions"]),
        markdown_table(["", *(one["name"] for one in runs)], _table_rows(runs)),
        "\n".join(apart),
        "\n".join(["## Errors and empty patches", "", *reasons]) if reasons else "",
        f"![{FIGURE_FILE}]({FIGURE_FILE})",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table_rows(runs: Sequence[Entry]) -> list[list[str]]:
    rows = [
        ["graded", *map(_graded_by, runs)],
        ["pass rate (95% Wilson)", *map(_pass_rate, runs)],
        *([status, *(cell(one[status], "d") for one in runs)] for status in STATUSES),
        ["not graded", *(str(one["not_graded"]) for one in runs)],
        ["agents that ended", *map(_ended, runs)],
        ["agents' exits", *(_counted(one["exit_statuses"]) or "-" for one in runs)],
    ]
    for heading, name, form, unit in _ROWS:
        cells = []
        for one in runs:
            ratio = one["ratios"].get(name)
            text = cell(one[name], form) + (unit if one[name] is not None else "")
            cells.append(text + (f" (x {ratio:.2f})" if ratio else ""))
        rows.append([heading, *cells])
    return [*rows, ["pins", *map(_pins, runs)]]


def _graded_by(run: Entry) -> str:
    if run["mode"] is None:
        return "not graded"
    is_local = run["mode"] == DAEMON_LESS
    label = _DAEMON_LESS_LABEL if is_local else f"official harness, {run['mode']}"
    return f"{label} (swebench {run['harness_version']})"


def _pass_rate(run: Entry) -> str:
    if run["pass_rate"] is None:
        return "not graded"
    return f"{run['pass_rate']:.1%} ({run['pass_rate_low']:.1%} to {run['pass_rate_high']:.1%})"


def _ended(run: Entry) -> str:
    rest = _counted({"failed": run["failed"], "not run": run["not_run"]})
    return f"{run['completed']} of {run['instances']}{f', {rest}' if rest else ''}"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def _pins(run: Entry) -> str:
    ends = _counted(run["pin_ends"] or {})
    return cell(run["pins"], "d") + (f" ({ends})" if ends else "")


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Write the PNG; a panel for which no run has a number is left out. OSError if that fails."""
    runs = document["runs"]
    panels = [one for one in _PANELS if any(run[one[0]] is not None for run in runs)]
    with common_style():
        figure, axes, width_in = panel_grid(max(1, len(panels)), _PANEL_IN)
        for each, (_, draw_run, settings) in zip(axes, panels, strict=False):
            for place, run in enumerate(runs):
                draw_run(each, run, place, look(run["policy"]).line())
            each.set(**dict(zip(_SETTINGS, settings, strict=True)))
        if panels:
            legend_above(figure, axes)
        text = "; ".join(line.replace("**", "") for line in document["conditions"])
        save(figure, path, conditions=textwrap.fill(text, int(width_in * _CHARS_PER_IN)))


def _draw_pass_rate(axes: Any, run: Entry, place: int, style: dict[str, Any]) -> None:
    if (rate := run["pass_rate"]) is not None:
        errors = [[100 * (rate - run["pass_rate_low"])], [100 * (run["pass_rate_high"] - rate)]]
        style = {**style, "linestyle": "none"}
        axes.errorbar([place], [100 * rate], yerr=errors, label=run["name"], **style)
    axes.set(xlim=(-0.5, place + 0.5), xticks=[])


def _draw_completion(axes: Any, run: Entry, place: int, style: dict[str, Any]) -> None:
    if times_s := run["jobs_s"]:
        num_jobs = len(times_s)
        shares = [100 * number / num_jobs for number in range(num_jobs + 1)]
        style = {**style, "drawstyle": "steps-post", "markevery": max(1, num_jobs // 6)}
        axes.plot([times_s[0], *times_s], shares, label=run["name"], **style)


def _draw_by_turn(
    name: str, scale: float, axes: Any, run: Entry, place: int, style: dict[str, Any]
) -> None:
    numbers = zip(run[name], run["per_turn_instances"], strict=True)
    found = {
        turn: scale * value
        for turn, (value, count) in enumerate(numbers, start=1)
        if value is not None and count >= _MIN_INSTANCES * run["completed"]
    }
    if found:
        style = {**style, "markevery": max(1, len(found) // 10), "label": run["name"]}
        axes.plot(list(found), list(found.values()), **style)


_SETTINGS = ("title", "xlabel", "ylabel", "xlim", "ylim")
_RATE = ("Pass rate, 95% Wilson interval", "", "% of instances", None, (-3, 103))
_JCT = ("Job completion time", "seconds", "% of jobs done", (0, None), (0, 101))
_LATENCY = ("Mean latency of a turn", "turn", "seconds", None, (0, None))
_CACHED = ("Cached share of the prompt", "turn", "% of prompt tokens", None, (-3, 103))
_PANELS: tuple[tuple[str, Callable[..., None], tuple[Any, ...]], ...] = (
    ("pass_rate", _draw_pass_rate, _RATE),
    ("jct_mean_s", _draw_completion, _JCT),
    ("jct_mean_s", partial(_draw_by_turn, "per_turn_llm_mean_s", 1.0), _LATENCY),
    ("cached_share", partial(_draw_by_turn, "per_turn_cached_share", 100.0), _CACHED),
)
"""Number that a run must have, what draws a run, settings of the axes."""
