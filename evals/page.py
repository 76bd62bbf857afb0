"""Writes pages that need nothing but themselves: no network, no other file.

A server's record is shown by the live page (integrations/vllm/ui), with the events in the file in
place of a stream. Runs have tables and pictures. Knows nothing of what a number means.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from agentkv import __version__
from agentkv.integrations.vllm.watch.job_view import JobView, sentence
from agentkv.policies.pins import ENDINGS
from agentkv.visible import visible

from .event_log import Record
from .rows import write_whole

_UI = importlib.resources.files("agentkv.integrations.vllm") / "ui"
_SCRIPTS = ("words.js", "lanes.js", "curves.js", "jobs.js", "stream.js", "page.js")
"""The page's modules, each before those that import it."""
_STYLE = """
body { max-width: 1080px; }
h2 { margin: 28px 0 8px; overflow-wrap: anywhere; }
p, figcaption { color: var(--soft); }
figure { margin: 16px 0; }
img { max-width: 100%; background: #fff; border-radius: 6px; }
@media (prefers-color-scheme: dark) { img { filter: invert(0.92) hue-rotate(180deg); } }
pre, .wide { overflow-x: auto; }
.wide table { table-layout: auto; }
.wide td + td, .wide th + th { text-align: right; }
"""
"""What a page of tables and pictures has in addition to the live page's style."""
_NAME = r"(?:key|token|secret|password|authorization|--api?-?k?e?)"
_SECRET_FLAG = re.compile(rf"(?=-)[\w-]*{_NAME}", re.IGNORECASE)
_SECRET = re.compile(
    rf"""({_NAME}["']?\s*[:=\s]\s*["']?(?:bearer\s+|basic\s+)?)[^\s"',}}]+|(?<=//)[^/\s@]+(?=@)""",
    re.IGNORECASE,
)
"""A value behind a name such as API_KEY, or who asks in a URL."""


def write_record_page(
    path: Path,
    record: Record,
    jobs: Sequence[JobView],
    *,
    title: str,
    summary: str = "",
    stats: Mapping[str, Any] | None = None,
) -> None:
    """Write the live page with these jobs' events in it; OSError if writing fails.

    `stats` are those of a running server; without them the totals are those of the jobs.
    """
    chosen = {(job.job_id, job.engine) for job in jobs}
    engines = [
        _engine(number, record, [job for job in jobs if (job.engine or 0) == number], chosen)
        for number in sorted({job.engine or 0 for job in jobs})
    ]
    engines[0]["stats"] = stats if stats is not None else _totals(jobs)
    shown = {"title": title, "written": _written(), "summary": summary, "engines": engines}
    data = json.dumps(shown).replace("<", "\\u003c")
    html = (_UI / "index.html").read_text(encoding="utf-8")
    body = html[html.index("<body>") + 6 : html.index("</body>")]
    data_tag = f'<script type="application/json" id="record">{data}</script>'
    script = "\n".join((_UI / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    script = re.sub(r"^(import .*\n|export )", "", script, flags=re.MULTILINE)
    _write(path, "agentkv", body + data_tag, script=script)


def _engine(
    number: int, record: Record, jobs: Sequence[JobView], chosen: set[tuple[str, int | None]]
) -> dict[str, Any]:
    """One engine as the live stream has it, but for its pool: at the end of its log."""
    events = [
        {**event, "job_id": key.job_id, "text": sentence(event)}
        for key, events in record.events.items()
        if (key.engine or 0) == number and key in chosen
        for event in events
    ]
    events.sort(key=lambda event: event["at_s"])
    return {
        "engine": number,
        "at_s": max(event["at_s"] for event in events),
        "stats": {},
        "jobs": [_job(job) for job in jobs],
        "num_jobs": len(jobs),
        "events": events,
    }


def _job(job: JobView) -> dict[str, Any]:
    last = job.turns[-1] if job.turns else None
    prompt_tokens, hit_tokens = job.hits()
    num_missed = sum(turn.miss is not None for turn in job.turns)
    turns = "turn" if num_missed == 1 else "turns"
    missed = f"{num_missed} {turns} computed tokens again" if num_missed else ""
    words: dict[str | None, str] = {name: end.words for name, end in ENDINGS.items()}
    return {
        "job_id": job.job_id,
        "parent_job_id": job.parent_job_id,
        "state": "over",
        "turn": len(job.turns),
        "tokens": last.prompt_tokens + (last.output_tokens or 0) if last else 0,
        "took_s": job.ended_s - job.started_s,
        "prompt_tokens": prompt_tokens,
        "hit_tokens": hit_tokens,
        "why": "; ".join(filter(None, [missed, words.get(job.close_reason, "open")])),
        "turns": job.rows(),
    }


def _totals(jobs: Sequence[JobView]) -> dict[str, Any]:
    """What a server's stats say of these jobs, as far as a log does."""
    ends = Counter(hold.end for job in jobs for hold in job.holds if hold.end is not None)
    missed: Counter[str] = Counter()
    for miss in (turn.miss for job in jobs for turn in job.turns):
        if miss is not None:
            missed[miss["reason"]] += miss["tokens"]
    hits = [job.hits() for job in jobs]
    return {
        **{"pin_ends_total": ends, "savings": {"recomputed_tokens": missed}},
        "prompt_tokens_total": {"later": sum(prompts for prompts, _ in hits)},
        "hit_tokens_total": {"later": sum(found for _, found in hits)},
    }


def write_page(path: Path, title: str, parts: Iterable[str]) -> None:
    """Write a page of tables and pictures; OSError if writing fails."""
    head = f"<h1>{escape(title)}</h1>\n<p>{escape(_written())}.</p>\n"
    _write(path, title, head + "\n".join(parts), style=_STYLE)


def _written() -> str:
    return f"written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by agentkv {__version__}"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = "".join(
        f"<tr>{''.join(f'<td>{escape(str(value))}</td>' for value in row)}</tr>\n" for row in rows
    )
    return f'<div class="wide"><table><tr>{heads}</tr>\n{lines}</table></div>'


def figure(picture: Path, caption: str) -> str:
    """An image that holds its file, so that text of jobs in an SVG neither runs nor loads."""
    data = base64.b64encode(picture.read_bytes()).decode()
    media_type = {".svg": "image/svg+xml", ".png": "image/png"}[picture.suffix]
    image = f'<img alt="{escape(caption)}" src="data:{media_type};base64,{data}">'
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"


def shown_command(command: str, argv: Sequence[str]) -> str:
    """The command as it was typed, with `***` for keys, tokens and passwords."""
    words = [
        "***" if _SECRET_FLAG.fullmatch(before) else shlex.quote(without_secrets(word))
        for before, word in zip(["", *argv], argv, strict=False)
    ]
    return " ".join(["agentkv", command, *words])


def without_secrets(text: str) -> str:
    return _SECRET.sub(lambda found: f"{found[1] or ''}***", text)


def _write(path: Path, title: str, body: str, *, style: str = "", script: str = "") -> None:
    """The policy of the page lets this one script run, and no other."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    style = (_UI / "page.css").read_text(encoding="utf-8") + style
    tag = f'<script type="module">{script}</script>' if script else ""
    text = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{allowed}; script-src 'sha256-{digest}'">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
{body}
{tag}
</body>
</html>
"""
    write_whole(path, visible(text, keep="\n"))
