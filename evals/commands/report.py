"""`agentkv report SOURCE --html FILE`: one HTML file with what a run or a server's log shows.

SOURCE is a folder with runs anywhere below it (an --out of bench, compare, simulate), a folder that
`agentkv swebench report` wrote, the URL of a running server, or an event log as `agentkv record`
takes it. Runs have tables and pictures; a server or a log has the live page, with the events in it.
The file needs nothing but itself: for a pull request, or as a paper's supplement.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from agentkv.client.transport import COMMAND_TIMEOUT_S, ServerAPI
from agentkv.command_line import DONE, command_parser, print_document
from agentkv.errors import InputError

from ..event_log import DEFAULT_AFTER_S, jobs_of, passed_over, read_record, totals
from ..figures.drawing import in_order
from ..figures.runs import Group, Run, grouped, load_runs, run_of, without_jobs
from ..outcomes import COLUMNS, RunOutcome, fastest_in_words, mean
from ..page import figure, table, write_page, write_record_page
from ..rows import TURNS_FILE, require_free
from ..tables import cell
from .plot import DEFAULT_BASELINE, KINDS, drawings
from .record import summary

SWEBENCH_PAGE, SWEBENCH_FIGURE = "report.md", "report.png"
SHOWN = (
    *("mean_s", "p50_s", "p99_s", "ttft_first_p99_s", "ttft_continuing_p99_s"),
    *("hit_rate", "recomputed_tokens", "preemptions"),
)
"""Numbers of a run's summary that are shown."""
_NAME = r"(?:key|token|secret|password|authorization|--api?-?k?e?)"
_SECRET_FLAG = re.compile(rf"(?=-)[\w-]*{_NAME}", re.IGNORECASE)
_SECRET = re.compile(
    rf"""({_NAME}["']?\s*[:=\s]\s*["']?(?:bearer\s+|basic\s+)?)[^\s"',}}]+|(?<=//)[^/\s@]+(?=@)""",
    re.IGNORECASE,
)
"""A value behind a name such as API_KEY, or who asks in a URL."""


def main(argv: Sequence[str]) -> int:
    """0: written. Raises InputError for a source or a file that cannot be used."""
    options = _parser().parse_args(argv)
    require_free(options.html, force=options.force, flag="--html")
    document = write_report(options.source, options.html, api_key=options.api_key)
    print_document(document, is_asked_for=False)
    return DONE


def write_report(source: str, path: Path, *, api_key: str | None = None) -> dict[str, Any]:
    """Write the report of a run's folder, a server or an event log; returns what is in it.

    Raises InputError for a source that cannot be read, OSError if writing fails.
    """
    shown = _without_secrets(source) if "://" in source else Path(source).resolve().name
    title = f"agentkv: {shown}"
    figures: list[str] = []
    if "://" not in source and (Path(source) / SWEBENCH_PAGE).is_file():
        parts, figures = _parts_of_swebench(Path(source))
        write_page(path, title, parts)
    elif "://" not in source and next(Path(source).rglob(TURNS_FILE), None) is not None:
        figures = _write_runs(path, title, *load_runs([source]))
    else:
        record = read_record(source, api_key=api_key)
        jobs = jobs_of(record)
        total = {**totals(jobs), "passed_over": passed_over(jobs, DEFAULT_AFTER_S)}
        stats = None
        if "://" in source:
            stats = ServerAPI(source, api_key=api_key, timeout_s=COMMAND_TIMEOUT_S).stats()
        text = "\n".join(summary(total))
        write_record_page(path, record, jobs, title=title, summary=text, stats=stats)
    print(f"written to {path}", file=sys.stderr, flush=True)
    return {"source": source, "html": str(path), "figures": figures}


def keep_report(
    path: Path, command: str, argv: Sequence[str], outcomes: Sequence[RunOutcome]
) -> bool:
    """Write the report of runs that a command has just made, for its --html; False, with the
    reason on standard error, if the file cannot be written."""
    runs = [run_of(outcome) for outcome in outcomes]
    done = [run for run in runs if run.summary["completed"]]
    lines = [shown_command(command, argv), *without_jobs(runs)]
    try:
        _write_runs(path, f"agentkv: {command}", done, lines)
    except OSError as error:
        print(f"agentkv {command}: {path} could not be written: {error}", file=sys.stderr)
        return False
    print(f"written to {path}", file=sys.stderr, flush=True)
    return True


def shown_command(command: str, argv: Sequence[str]) -> str:
    """The command as it was typed, with `***` for keys, tokens and passwords."""
    words = [
        "***" if _SECRET_FLAG.fullmatch(before) else shlex.quote(_without_secrets(word))
        for before, word in zip(["", *argv], argv, strict=False)
    ]
    return " ".join(["agentkv", command, *words])


def _without_secrets(text: str) -> str:
    return _SECRET.sub(lambda found: f"{found[1] or ''}***", text)


def _parts_of_swebench(folder: Path) -> tuple[list[str], list[str]]:
    """The page and the figure that `agentkv swebench report` wrote."""
    page = (folder / SWEBENCH_PAGE).read_text(encoding="utf-8")
    pictures = [folder / SWEBENCH_FIGURE] if (folder / SWEBENCH_FIGURE).is_file() else []
    figures = [figure(picture, "durations and turns of each run") for picture in pictures]
    return [f"<pre>{escape(page)}</pre>", *figures], [picture.name for picture in pictures]


def _write_runs(path: Path, title: str, runs: Sequence[Run], lines: Sequence[str]) -> list[str]:
    """Write the lines, a table for each setting, then the figures that its rows are enough for."""
    groups = grouped(runs)
    parts = [f"<p>{escape(line)}</p>" for line in lines]
    for group in groups:
        parts += [f"<h2>{escape(group.slug)}</h2>", _lead_of(group), _table_of(group)]
    figures = []
    with tempfile.TemporaryDirectory() as scratch:
        for kind, file, draw in drawings(groups, list(KINDS), DEFAULT_BASELINE):
            picture = Path(scratch) / Path(file).with_suffix(".svg")
            try:
                draw(picture)
            except InputError:
                continue  # the rows are not enough for this one
            figures.append(file)
            parts.append(figure(picture, KINDS[kind]))
    write_page(path, title, parts)
    return figures


def _lead_of(group: Group) -> str:
    """Say which policy is fastest under the heaviest load, and by how much; empty for one alone."""
    heaviest = group.heaviest()
    times_s: dict[str, list[float]] = {}
    for run in heaviest.runs:
        times_s.setdefault(run.policy, []).append(run.summary["mean_s"])
    means_s = {policy: fmean(each) for policy, each in times_s.items()}
    if DEFAULT_BASELINE not in means_s or len(means_s) == 1:
        return ""
    return f"<p>{escape(f'{heaviest.title()}. {fastest_in_words(means_s, DEFAULT_BASELINE)}')}</p>"


def _table_of(group: Group) -> str:
    """Means over the runs of each load and policy."""

    def rows() -> Iterator[list[str]]:
        loads: list[float | None] = [*group.loads] or [None]
        for load in loads:
            same = group.at(load).runs
            for policy in in_order(run.policy for run in same):
                yield _row(load, [run for run in same if run.policy == policy])

    heads = [COLUMNS[name][0] for name in SHOWN]
    return table(["policy", "load", "runs", "jobs done", *heads], rows())


def _row(load: float | None, runs: Sequence[Run]) -> list[str]:
    numbers = []
    for name in SHOWN:
        values = [run.summary[name] for run in runs if run.summary.get(name) is not None]
        numbers.append(cell(mean(values), COLUMNS[name][1]))
    done, jobs = (sum(run.summary[name] for run in runs) for name in ("completed", "jobs"))
    return [runs[0].policy, cell(load, "g"), str(len(runs)), f"{done} of {jobs}", *numbers]


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("report", __doc__)
    add: Any = parser.add_argument
    add("source", metavar="SOURCE", help="folder with runs, URL of a server, or an event log")
    add("--html", type=Path, required=True, metavar="FILE", help="the file to write")
    add("--force", action="store_true", help="overwrite it")
    add("--api-key", help="sent as a bearer token")
    return parser
