"""Compares graded runs: pass rate, completion times, cache; as Markdown, JSON and one figure.

Called by the commands `report` and `demo`. Reads the folders of runs only.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..figures.style import in_order
from ..rows import write_whole
from ..summary import describe_durations, mean
from ..tables import cell, markdown_table
from .folder import ERROR_PREFIX, SwebenchRun, read_run
from .grading import patch_sha256, read_eval
from .harness import STATUSES, Verdict
from .instances import DAEMON_LESS, SwebenchError

MARKDOWN_FILE, JSON_FILE, FIGURE_FILE = "report.md", "report.json", "report.png"
_DAEMON_LESS_LABEL = "daemon-less: the eval script in bubblewrap, the harness's grading, no image"
_DAEMON_LESS_WARNING = (
    "**daemon-less grading**: not a result of the official evaluation, which runs in the "
    "instances' images"
)
_Z_95 = 1.959964  # two-sided 95% of the normal distribution
_MAX_NAMED = 3
_MAX_REASONS = 40
_ROWS = (
    *(
        (f"JCT {name}", f"jct_{name}_s", ".1f", " s")
        for name in ("mean", "p50", "p90", "p99", "max")
    ),
    ("turns per job", "turns_mean", ".1f", ""),
    *(
        (f"turn latency {name}", f"turn_llm_{name}_s", ".2f", " s")
        for name in ("mean", "p50", "p90", "p99", "max")
    ),
    ("tool time mean", "turn_tool_mean_s", ".2f", " s"),
    ("cached share, continuing turns", "cached_share", ".1%", ""),
    ("cached share, first turns", "cached_share_first", ".1%", ""),
    ("prompt tokens", "prompt_tokens", ",", ""),
    ("output tokens", "output_tokens", ",", ""),
    ("preemptions", "preemptions", ",", ""),
)
"""Heading, name in the summary, format, unit."""


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """One run with its verdicts (None: not graded) and its numbers; `name` heads its column."""

    name: str
    run: SwebenchRun
    mode: str | None
    harness_version: str | None
    verdicts: Mapping[str, Verdict] | None
    summary: Mapping[str, Any]

    @property
    def graded_by(self) -> str:
        if self.mode is None:
            return "not graded"
        is_local = self.mode == DAEMON_LESS
        label = _DAEMON_LESS_LABEL if is_local else f"official harness, {self.mode}"
        return f"{label} (swebench {self.harness_version})"

    @property
    def resolved(self) -> set[str]:
        verdicts = self.verdicts or {}
        return {name for name, verdict in verdicts.items() if verdict.status == "resolved"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs on the same instances; ratios are to `baseline`."""

    runs: Sequence[ReportedRun]
    baseline: ReportedRun

    def ratio(self, run: ReportedRun, name: str) -> float | None:
        """Divide a number by the baseline's; None for the baseline itself, or without a number."""
        reference, value = self.baseline.summary[name], run.summary[name]
        return value / reference if run is not self.baseline and reference and value else None

    def resolved_apart(self, run: ReportedRun) -> tuple[int, int] | None:
        """Count instances resolved only in `run`, only in the baseline; None unless all graded."""
        if run.summary["pass_rate"] is None or self.baseline.summary["pass_rate"] is None:
            return None
        here, there = run.resolved, self.baseline.resolved
        return len(here - there), len(there - here)

    def conditions(self) -> list[str]:
        """Return what was run, and what a reader must know before comparing."""
        documents = [run.run.document for run in self.runs]
        told = [
            f"{name.replace('_', ' ')} {_listed(documents, name)}"
            for name in ("model", "environment", "step_limit", "seed", "commit")
        ]
        loads = [
            f"{one.get('workers')} at once" if one.get("jps") is None else f"{one['jps']:g} jobs/s"
            for one in documents
        ]
        num_instances = len(self.runs[0].run.instance_ids)
        return [
            f"{num_instances} instances of {_listed(documents, 'dataset')}",
            "; ".join([*told, f"load {', '.join(dict.fromkeys(loads))}"]),
            "JCT: seconds from an instance's start to its agent's end, of agents that ended",
            *self._warnings(documents),
        ]

    def _warnings(self, documents: Sequence[Mapping[str, Any]]) -> list[str]:
        found = []
        if any(run.mode == DAEMON_LESS for run in self.runs):
            found.append(_DAEMON_LESS_WARNING)
        if len({run.graded_by for run in self.runs}) > 1:
            found.append("**the runs were not graded alike**: see the row `graded`")
        for name in ("model", "environment", "step_limit", "seed", "workers", "jps"):
            if "," in (values := _listed(documents, name)):
                found.append(f"**the runs differ in {name}**: {values}")
        missing = {
            run.name: run.verdicts is not None and run.summary["not_graded"] for run in self.runs
        }
        if named := ", ".join(
            f"{name}: {count} patches" for name, count in missing.items() if count
        ):
            found.append(
                f"**not graded yet**, so no pass rate: {named}; "
                "`agentkv swebench eval` goes on with them"
            )
        unfinished = [run.name for run in self.runs if run.run.document.get("ended_at") is None]
        if unfinished:
            found.append(f"**not run to its end**: {', '.join(unfinished)}")
        return found


def report(
    folders: Sequence[Path],
    out: Path | None = None,
    *,
    baseline: str | None = None,
    is_forced: bool = False,
) -> dict[str, Any]:
    """Write the three files, and return the content of the JSON one.

    A run's own folder is written again without asking; elsewhere an existing report stays unless
    `is_forced`. Raises SwebenchError for that, and for runs on different instances.
    """
    from .figure import draw

    comparison = compare(folders, baseline)
    folder = folders[0] if out is None else out
    if folder not in folders and (folder / JSON_FILE).exists() and not is_forced:
        raise SwebenchError(f"{folder / JSON_FILE} exists: choose another --out, or --force")
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "baseline": comparison.baseline.name,
        "conditions": comparison.conditions(),
        "runs": [_entry(comparison, run) for run in comparison.runs],
        "files": {
            "markdown": str(folder / MARKDOWN_FILE),
            "json": str(folder / JSON_FILE),
            "figure": str(draw(comparison, folder / FIGURE_FILE)),
        },
    }
    write_whole(folder / MARKDOWN_FILE, _page(comparison))
    write_whole(folder / JSON_FILE, json.dumps(document, indent=1) + "\n")
    return document


def compare(folders: Sequence[Path], baseline: str | None = None) -> Comparison:
    """Read the runs; raises SwebenchError if they are not of the same instances."""
    read = [read_run(folder) for folder in folders]
    for other in read[1:]:
        _check_same_instances(read[0], other)
    counts = Counter(run.policy for run in read)
    runs = [
        _reported(run, run.policy if counts[run.policy] == 1 else f"{run.policy} {run.run_id}")
        for run in read
    ]
    order = in_order([run.run.policy for run in runs])
    runs.sort(key=lambda run: order.index(run.run.policy))
    chosen = [run for run in runs if baseline in (None, run.name, run.run.policy)]
    if not chosen:
        allowed = ", ".join(run.name for run in runs)
        raise SwebenchError(f"--baseline: got {baseline!r}, the runs are {allowed}")
    return Comparison(runs, chosen[0])


def wilson(successes: int, trials: int) -> tuple[float, float] | None:
    """Return the 95% interval of a rate; None without trials.

    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference,
    1927 (the score interval, without continuity correction).
    """
    if not trials:
        return None
    rate = successes / trials
    spread = _Z_95**2 / trials
    middle = (rate + spread / 2) / (1 + spread)
    half = _Z_95 * math.sqrt(rate * (1 - rate) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def summarize_run(run: SwebenchRun, verdicts: Mapping[str, Verdict] | None) -> dict[str, Any]:
    """Return every number of one run, None for what was not measured; durations in seconds.

    Times and tokens are of instances whose agent ended by itself or at a limit. `verdicts` None
    is a run that was not graded; instances without a verdict are not graded yet.
    """
    rows = [run.rows[name] for name in run.instance_ids if name in run.rows]
    ended = [row for row in rows if is_completed(row)]
    turns = [row.get("turns") or [] for row in ended]
    every = [turn for one in turns for turn in one]
    by_turn: defaultdict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for one in turns:
        for number, turn in enumerate(one):
            by_turn[number].append(turn)
    stats = run.document.get("server_stats") or {}  # None under a stock policy
    pins = stats.get("pins_total")
    return {
        "instances": len(run.instance_ids),
        **_outcomes(run, verdicts),
        "completed": len(ended),
        "failed": len(rows) - len(ended),
        "not_run": len(run.instance_ids) - len(rows),
        "exit_statuses": dict(Counter(str(row.get("exit_status")) for row in rows).most_common()),
        **_durations("jct", [job_s(row) for row in ended]),
        "turns_mean": mean([float(row.get("num_turns") or 0) for row in ended]),
        **_durations("turn_llm", _known(every, "llm_s")),
        **_durations("turn_tool", _known(every, "tool_s")),
        "per_turn_llm_mean_s": [mean(_known(same, "llm_s")) for same in by_turn.values()],
        "per_turn_cached_share": [_cached_share(same) for same in by_turn.values()],
        "per_turn_instances": [float(len(same)) for same in by_turn.values()],
        "prompt_tokens": sum(int(turn.get("prompt_tokens") or 0) for turn in every),
        "output_tokens": sum(int(turn.get("output_tokens") or 0) for turn in every),
        # the first turn of a job has no tokens of its own to find again
        "cached_share": _cached_share(turn for one in turns for turn in one[1:]),
        "cached_share_first": _cached_share(turn for one in turns for turn in one[:1]),
        "pins": None if pins is None else sum(pins.values()),
        "pin_ends": stats.get("pin_ends_total"),
        "preemptions": stats.get("preemptions_total"),
    }


def is_completed(row: Mapping[str, Any]) -> bool:
    """Return whether the agent ended by itself or at a limit: a failed job's time says nothing."""
    return not str(row.get("exit_status")).startswith(ERROR_PREFIX) and not row.get("error")


def job_s(row: Mapping[str, Any]) -> float:
    """Return an instance's job completion time; raises SwebenchError if its row lacks the times."""
    try:
        return float(row["end_s"]) - float(row["start_s"])
    except (LookupError, TypeError, ValueError) as error:
        raise SwebenchError(
            f"the row of {row['instance_id']} has no start_s and end_s in seconds"
        ) from error


def _outcomes(run: SwebenchRun, verdicts: Mapping[str, Verdict] | None) -> dict[str, Any]:
    """A pass rate is of all instances of the run, so there is none until all are graded."""
    total = len(run.instance_ids)
    rates: dict[str, Any] = dict.fromkeys(("pass_rate", "pass_rate_low", "pass_rate_high"))
    if verdicts is None:
        return {**dict.fromkeys(STATUSES), "not_graded": total, **rates}
    counts = Counter(verdict.status for verdict in verdicts.values())
    interval = wilson(counts["resolved"], total)
    if len(verdicts) == total and interval is not None:
        rates = dict(zip(rates, (counts["resolved"] / total, *interval), strict=True))
    found: dict[str, Any] = {status: counts[status] for status in STATUSES}
    return {**found, "not_graded": total - len(verdicts), **rates}


def _durations(name: str, values: Sequence[float]) -> dict[str, float | None]:
    found = describe_durations(values)
    shown = ("mean_s", "p50_s", "p90_s", "p99_s", "max_s")
    return {f"{name}_{key}": found[key] for key in shown}


def _known(turns: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    return [float(turn[name]) for turn in turns if turn.get(name) is not None]


def _cached_share(turns: Iterable[Mapping[str, Any]]) -> float | None:
    """Divide cached by prompt tokens of the turns whose server reported both."""
    told = [turn for turn in turns if turn.get("cached_tokens") is not None]
    prompt_tokens = sum(int(turn.get("prompt_tokens") or 0) for turn in told)
    cached_tokens = sum(int(turn["cached_tokens"]) for turn in told)
    return cached_tokens / prompt_tokens if prompt_tokens else None


def _reported(run: SwebenchRun, name: str) -> ReportedRun:
    found = read_eval(run.folder)
    if found is None:
        return ReportedRun(name, run, None, None, None, summarize_run(run, None))
    document, verdicts = found
    current = {  # a resumed run may have other patches than those that were graded
        instance_id: verdicts[instance_id]
        for instance_id in run.instance_ids
        if instance_id in verdicts
        and verdicts[instance_id].patch_sha256 == patch_sha256(run.patch(instance_id))
    }
    mode, version = document.get("mode"), document.get("harness_version")
    return ReportedRun(name, run, mode, version, current, summarize_run(run, current))


def _check_same_instances(first: SwebenchRun, other: SwebenchRun) -> None:
    apart = set(first.instance_ids) ^ set(other.instance_ids)
    if apart:
        named = ", ".join(sorted(apart)[:_MAX_NAMED])
        raise SwebenchError(
            f"{first.folder} and {other.folder} are not of the same instances: {len(apart)} are "
            f"in one only, such as {named}: run both on the same --slice and --filter"
        )
    shas = [run.document.get("dataset_sha256") for run in (first, other)]
    if shas[0] != shas[1]:
        raise SwebenchError(
            f"{first.folder} and {other.folder} are not of the same dataset: its sha256 is "
            f"{shas[0]} and {shas[1]}, so instances of one name may differ"
        )


def _listed(documents: Sequence[Mapping[str, Any]], name: str) -> str:
    return ", ".join(dict.fromkeys(str(document.get(name, "-")) for document in documents))


def _entry(comparison: Comparison, run: ReportedRun) -> dict[str, Any]:
    only_here, only_there = comparison.resolved_apart(run) or (None, None)
    return {
        "name": run.name,
        "policy": run.run.policy,
        "run_id": run.run.run_id,
        "run": str(run.run.folder),
        "mode": run.mode,
        "harness_version": run.harness_version,
        **run.summary,
        "ratios": {
            name: comparison.ratio(run, name) for name in run.summary if name.startswith("jct_")
        },
        "resolved_only_here": only_here,
        "resolved_only_in_baseline": only_there,
        "results": {name: asdict(verdict) for name, verdict in (run.verdicts or {}).items()},
    }


def _page(comparison: Comparison) -> str:
    runs = comparison.runs
    parts = [
        "# SWE-bench: pass rate, completion time and cache",
        "\n".join(f"- {line}" for line in comparison.conditions()),
        markdown_table(["", *(run.name for run in runs)], _table_rows(comparison)),
        _paired(comparison),
        _reasons(runs),
        f"![{FIGURE_FILE}]({FIGURE_FILE})",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table_rows(comparison: Comparison) -> list[list[str]]:
    runs = comparison.runs
    summaries = [run.summary for run in runs]
    rows = [
        ["graded", *(run.graded_by for run in runs)],
        ["pass rate (95% Wilson)", *map(_pass_rate, summaries)],
        *([status, *(cell(one[status], "d") for one in summaries)] for status in STATUSES),
        ["not graded", *(str(one["not_graded"]) for one in summaries)],
        ["agents that ended", *map(_ended, summaries)],
        ["agents' exits", *(_counted(one["exit_statuses"]) or "-" for one in summaries)],
    ]
    for heading, name, form, unit in _ROWS:
        cells = [cell(one[name], form) + unit * (one[name] is not None) for one in summaries]
        if name.startswith("jct_"):
            ratios = [comparison.ratio(run, name) for run in runs]
            pairs = zip(cells, ratios, strict=True)
            cells = [text + (f" (x {ratio:.2f})" if ratio else "") for text, ratio in pairs]
        rows.append([heading, *cells])
    return [*rows, ["pins", *map(_pins, summaries)]]


def _pass_rate(summary: Mapping[str, Any]) -> str:
    if summary["pass_rate"] is None:
        return "not graded"
    low, high = summary["pass_rate_low"], summary["pass_rate_high"]
    return f"{summary['pass_rate']:.1%} ({low:.1%} to {high:.1%})"


def _ended(summary: Mapping[str, Any]) -> str:
    rest = _counted({"failed": summary["failed"], "not run": summary["not_run"]})
    return f"{summary['completed']} of {summary['instances']}{f', {rest}' if rest else ''}"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def _pins(summary: Mapping[str, Any]) -> str:
    ends = _counted(summary["pin_ends"] or {})
    return cell(summary["pins"], "d") + (f" ({ends})" if ends else "")


def _paired(comparison: Comparison) -> str:
    apart = {run.name: comparison.resolved_apart(run) for run in comparison.runs}
    baseline = comparison.baseline.name
    return "\n".join(
        f"- {name}: {counts[0]} resolved here and not under {baseline}, "
        f"{counts[1]} the other way round"
        for name, counts in apart.items()
        if counts is not None and name != baseline
    )


def _reasons(runs: Sequence[ReportedRun]) -> str:
    """List the instances that are not resolved for another reason than their tests."""
    lines = [
        f"- {run.name}, `{name}`: {verdict.status}: {' '.join(verdict.detail.split())}"
        for run in runs
        for name, verdict in (run.verdicts or {}).items()
        if verdict.status in ("error", "empty")
    ]
    if len(lines) > _MAX_REASONS:
        lines[_MAX_REASONS:] = [f"- ... {len(lines) - _MAX_REASONS} more in `{JSON_FILE}`"]
    return "\n".join(["## Errors and empty patches", "", *lines]) if lines else ""
