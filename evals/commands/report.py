"""`agentkv report SOURCE --html FILE`: one HTML file with what a run or a server's log shows.

SOURCE is a folder with runs anywhere below it (an --out of bench, compare, simulate), a folder that
`agentkv swebench report` wrote, the URL of a running server, or an event log as `agentkv record`
takes it. Runs have tables and pictures; a server or a log has the live page, with the events in it.
The file needs nothing but itself: for a pull request, or as a paper's supplement.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from agentkv.client.transport import COMMAND_TIMEOUT_S, ServerAPI
from agentkv.command_line import DONE, command_parser, print_document

from ..event_log import DEFAULT_AFTER_S, jobs_of, passed_over, read_record, totals
from ..page import figure, without_secrets, write_page, write_record_page
from ..rows import TURNS_FILE, require_free
from .record import summary

SWEBENCH_PAGE, SWEBENCH_FIGURE = "report.md", "report.png"


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
    shown = without_secrets(source) if "://" in source else Path(source).resolve().name
    title = f"agentkv: {shown}"
    figures: list[str] = []
    if "://" not in source and (Path(source) / SWEBENCH_PAGE).is_file():
        parts, figures = _parts_of_swebench(Path(source))
        write_page(path, title, parts)
    elif "://" not in source and next(Path(source).rglob(TURNS_FILE), None) is not None:
        from ..figures.runs import load_runs  # pandas and matplotlib: a server needs neither
        from .plot import write_runs

        figures = write_runs(path, title, *load_runs([source]))
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


def _parts_of_swebench(folder: Path) -> tuple[list[str], list[str]]:
    """The page and the figure that `agentkv swebench report` wrote."""
    page = (folder / SWEBENCH_PAGE).read_text(encoding="utf-8")
    pictures = [folder / SWEBENCH_FIGURE] if (folder / SWEBENCH_FIGURE).is_file() else []
    figures = [figure(picture, "durations and turns of each run") for picture in pictures]
    return [f"<pre>{escape(page)}</pre>", *figures], [picture.name for picture in pictures]


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("report", __doc__)
    add: Any = parser.add_argument
    add("source", metavar="SOURCE", help="folder with runs, URL of a server, or an event log")
    add("--html", type=Path, required=True, metavar="FILE", help="the file to write")
    add("--force", action="store_true", help="overwrite it")
    add("--api-key", help="sent as a bearer token")
    return parser
