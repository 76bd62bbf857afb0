"""`agentkv report SOURCE --html FILE`: one HTML file with the tables and pictures of a run.

SOURCE is a folder with runs anywhere below it (an --out of bench, compare, simulate), a folder that
`agentkv swebench report` wrote, the URL of a running server, or an event log as `agentkv record`
takes it. The file needs nothing but itself: no
script, no network, for a pull request or as a paper's supplement.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from agentkv import __version__
from agentkv.client.transport import COMMAND_TIMEOUT_S, ServerAPI
from agentkv.errors import InputError

from ..event_log.jobs import jobs_of
from ..event_log.reading import read_record
from ..event_log.totals import DEFAULT_AFTER_S, job_row, passed_over, totals
from ..figures.runs import Group, Run, grouped, load_runs, run_of, without_jobs
from ..figures.style import in_order
from ..figures.timeline import draw_record
from ..options import DONE, command_parser
from ..outcomes import RunOutcome
from ..rows import TURNS_FILE, require_free, time_stamp, write_whole
from ..summary import mean
from ..tables import cell
from .plot import DEFAULT_BASELINE, KINDS, drawings
from .record import LEGEND, summary

SWEBENCH_PAGE, SWEBENCH_FIGURE = "report.md", "report.png"
MAX_JOBS_DRAWN = 24
MAX_JOBS_LISTED = 200
NUMBERS = {
    "mean_s": ("mean s", ".1f"),
    "p50_s": ("p50 s", ".1f"),
    "p99_s": ("p99 s", ".1f"),
    "ttft_first_p99_s": ("first token p99 s", ".2f"),
    "ttft_continuing_p99_s": ("later turns p99 s", ".2f"),
    "hit_rate": ("hits", ".1%"),
    "recomputed_tokens": ("recomputed tok", ",.0f"),
    "preemptions": ("preemptions", ",.1f"),
}
"""Numbers of a run's summary that are shown: heading, and how a number looks."""
SAVINGS = {
    "kept_tokens": "prefill tokens saved",
    "kept_engine_s": "engine seconds saved",
    "stock_hit_tokens": "tokens that stock would have hit as well",
}

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #fff; --ink: #1b2027; --soft: #5b6470; --line: #dfe3e8;
}
@media (prefers-color-scheme: dark) {
  :root { --ground: #0f1318; --ink: #e4e8ee; --soft: #98a2b0; --line: #2a313b; }
}
body {
  margin: 0 auto; max-width: 1080px; padding: 24px 16px 48px;
  background: var(--ground); color: var(--ink); font-variant-numeric: tabular-nums;
  font: 14px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
h1 { font-size: 20px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 32px 0 8px; overflow-wrap: anywhere; }
p, figcaption { color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; }
th, td {
  padding: 3px 14px 3px 0; border-bottom: 1px solid var(--line);
  text-align: right; white-space: nowrap;
}
th:first-child, td:first-child { text-align: left; }
th { color: var(--soft); font-weight: 500; }
figure { margin: 16px 0 20px; }
img { max-width: 100%; background: #fff; border: 1px solid var(--line); border-radius: 6px; }
pre { font-size: 12px; overflow-x: auto; }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def main(argv: Sequence[str]) -> int:
    """0: written. Raises InputError for a source or a file that cannot be used."""
    options = _parser().parse_args(argv)
    require_free(options.html, force=options.force, flag="--html")
    document = write_report(options.source, options.html, api_key=options.api_key)
    print(json.dumps(document))
    return DONE


def write_report(source: str, path: Path, *, api_key: str | None = None) -> dict[str, Any]:
    """Write the report of a run's folder, a server or an event log; returns what is in it.

    Raises InputError for a source that cannot be read, OSError if writing fails.
    """
    with tempfile.TemporaryDirectory() as scratch:
        if "://" not in source and (Path(source) / SWEBENCH_PAGE).is_file():
            parts, figures = _parts_of_swebench(Path(source))
        elif "://" not in source and next(Path(source).rglob(TURNS_FILE), None) is not None:
            parts, figures = _parts_of_runs(*load_runs([source]), Path(scratch))
        else:
            parts, figures = _parts_of_record(source, api_key, Path(scratch))
    _write_page(path, source if "://" in source else Path(source).resolve().name, parts)
    return {"source": source, "html": str(path), "figures": figures}


def keep_report(path: Path, command: str, outcomes: Sequence[RunOutcome]) -> bool:
    """Write the report of runs that a command has just made, for its --html; False, with the
    reason on standard error, if the file cannot be written."""
    runs = [run_of(outcome) for outcome in outcomes]
    with tempfile.TemporaryDirectory() as scratch:
        done = [run for run in runs if run.summary["completed"]]
        parts, _ = _parts_of_runs(done, without_jobs(runs), Path(scratch))
    try:
        _write_page(path, command, parts)
    except OSError as error:
        print(f"agentkv {command}: {path} could not be written: {error}", file=sys.stderr)
        return False
    return True


def _parts_of_swebench(folder: Path) -> tuple[list[str], list[str]]:
    """The page and the figure that `agentkv swebench report` wrote."""
    page = (folder / SWEBENCH_PAGE).read_text(encoding="utf-8")
    pictures = [folder / SWEBENCH_FIGURE] if (folder / SWEBENCH_FIGURE).is_file() else []
    figures = [_figure(picture, "durations and turns of each run") for picture in pictures]
    return [f"<pre>{escape(page)}</pre>", *figures], [picture.name for picture in pictures]


def _parts_of_runs(
    runs: Sequence[Run], left_out: Sequence[str], scratch: Path
) -> tuple[list[str], list[str]]:
    """A table for each setting, then the figures that its rows are enough for."""
    groups = grouped(runs)
    parts = [f"<p>{escape(line)}</p>" for line in left_out]
    for group in groups:
        parts += [f"<h2>{escape(group.slug)}</h2>", _table_of(group)]
    figures = []
    for kind, file, draw in drawings(groups, list(KINDS), DEFAULT_BASELINE):
        picture = scratch / Path(file).with_suffix(".svg")
        try:
            draw(picture)
        except InputError:
            continue  # the rows are not enough for this one
        figures.append(file)
        parts += [_figure(picture, KINDS[kind])]
    return parts, figures


def _table_of(group: Group) -> str:
    """Means over the runs of each load and policy."""

    def rows() -> Iterator[list[str]]:
        loads: list[float | None] = [*group.loads] or [None]
        for load in loads:
            same = group.at(load).runs
            for policy in in_order(run.policy for run in same):
                yield _row(load, [run for run in same if run.policy == policy])

    heads = [name for name, _ in NUMBERS.values()]
    return _table(["policy", "load", "runs", "jobs done", *heads], rows())


def _row(load: float | None, runs: Sequence[Run]) -> list[str]:
    numbers = []
    for name, (_, form) in NUMBERS.items():
        values = [run.summary[name] for run in runs if run.summary.get(name) is not None]
        numbers.append(cell(mean(values), form))
    done, jobs = (sum(run.summary[name] for run in runs) for name in ("completed", "jobs"))
    return [runs[0].policy, cell(load, "g"), str(len(runs)), f"{done} of {jobs}", *numbers]


def _parts_of_record(
    source: str, api_key: str | None, scratch: Path
) -> tuple[list[str], list[str]]:
    """What a server's event log holds of its jobs; of a running server, what it saved as well."""
    jobs = jobs_of(read_record(source, api_key=api_key))
    total = {**totals(jobs), "passed_over": passed_over(jobs, DEFAULT_AFTER_S)}
    parts = []
    if "://" in source:
        stats = ServerAPI(source, api_key=api_key, timeout_s=COMMAND_TIMEOUT_S).stats()
        parts += ["<h2>Since the server started</h2>", _table(["", ""], _savings(stats))]
    parts += ["<h2>Jobs</h2>", f"<pre>{escape(chr(10).join(summary(total)))}</pre>"]
    figures = []
    if jobs:
        picture = draw_record(jobs[:MAX_JOBS_DRAWN], scratch / "jobs.svg", title="Jobs over time")
        figures.append(picture.name)
        parts.append(_figure(picture, f"the first {min(len(jobs), MAX_JOBS_DRAWN)} jobs over time"))
    heads = ["job", "turns", "prompt tokens", "hits", "turns evicted", "pins", "kept", "preempted"]
    names = ("prompt_tokens", "hit_rate", "turns_evicted", "pins", "pins_kept", "preemptions")
    rows = [
        [row["job_id"], row["turns"]]
        + [cell(row[name], ".1%") if name == "hit_rate" else row[name] for name in names]
        for row in map(job_row, jobs[:MAX_JOBS_LISTED])
    ]
    parts += [_table(heads, rows), f"<p>{escape(LEGEND)}</p>"]
    if len(jobs) > MAX_JOBS_LISTED:
        parts.append(f"<p>{len(jobs) - MAX_JOBS_LISTED} more jobs are not listed.</p>")
    return parts, figures


def _savings(stats: Mapping[str, Any]) -> Iterator[list[str]]:
    savings = stats.get("savings", {})
    for name, text in SAVINGS.items():
        if name in savings:
            yield [text, f"{round(savings[name], 1):,}"]
    for reason, num_tokens in savings.get("recomputed_tokens", {}).items():
        yield [f"tokens computed twice: {reason.replace('_', ' ')}", f"{num_tokens:,}"]
    for reason, num_pins in stats.get("pin_ends_total", {}).items():
        yield [f"pins that ended: {reason.replace('_', ' ')}", f"{num_pins:,}"]


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = "".join(
        f"<tr>{''.join(f'<td>{escape(str(value))}</td>' for value in row)}</tr>\n" for row in rows
    )
    return f'<div class="wide"><table><tr>{heads}</tr>\n{lines}</table></div>'


def _figure(picture: Path, caption: str) -> str:
    """An image that holds its file, so that text of jobs in an SVG neither runs nor loads."""
    data = base64.b64encode(picture.read_bytes()).decode()
    media_type = {".svg": "image/svg+xml", ".png": "image/png"}[picture.suffix]
    image = f'<img alt="{escape(caption)}" src="data:{media_type};base64,{data}">'
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"


def _write_page(path: Path, about: str, parts: Iterable[str]) -> None:
    """Raise OSError if the file cannot be written."""
    title = f"agentkv: {about}"
    body = "\n".join(parts)
    text = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>Written at {escape(time_stamp())} UTC by agentkv {escape(__version__)}.</p>
{body}
</body>
</html>
"""
    write_whole(path, text)
    print(f"written to {path}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("report", __doc__)
    add: Any = parser.add_argument
    add("source", metavar="SOURCE", help="folder with runs, URL of a server, or an event log")
    add("--html", type=Path, required=True, metavar="FILE", help="the file to write")
    add("--force", action="store_true", help="overwrite it")
    add("--api-key", help="sent as a bearer token")
    return parser
