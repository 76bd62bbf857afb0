"""`agentkv trace`: logs of your own agents as jobs: what they are like, and as one file.

`show` says what is in them: turns, tokens, tools, pauses, and the share of each prompt that begins
as the one before it ended. `convert` writes a line a turn, which every `--trace` takes; they take
the logs themselves, too. FILE is a log or a folder of logs. Kinds:
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from agentkv.command_line import DONE, add_json, command_parser, print_document
from agentkv.commands.analysis import command_key
from agentkv.errors import InputError
from agentkv.visible import visible

from ..outcomes import quantile
from ..rows import require_free, write_whole
from ..tables import cell, text_table
from ..traces.formats import NAMES, TracedFile, read_files
from ..traces.text import TokenCounter
from ..traces.turns import Jobs, TracedTurn, job_plans, jobs_among
from ..workload.plans import with_children

_MAX_TOOLS = 8
_MAX_LINES = 200
"""Jobs drawn; the first ones."""
_SHARES = (0.1, 0.5, 0.9, 1.0)
_MAX_BROKEN = 5
_WHOLE = 0.98
"""A prompt that keeps this share of the context before it is said to go on from it: chosen."""

_NAMES = {
    "turns": "turns a job",
    "first_prompt_tokens": "first prompt, tokens",
    "last_prompt_tokens": "last prompt, tokens",
    "growth_tokens": "growth a turn, tokens",
    "output_tokens": "output, tokens",
    "tool_s": "tool, s",
    "pause_s": "pause, s",
    "kept_share": "context kept",
}


def main(argv: Sequence[str]) -> int:
    """0: shown or written. Raises InputError for logs that cannot be read, or --out taken."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.what == "convert" and options.out is None:
        parser.error("convert needs --out FILE")
    if options.out is not None:
        require_free(options.out, force=options.force, flag="--out")
    if options.what == "show" and options.out and options.out.suffix not in {".png", ".svg"}:
        raise InputError(f"--out: got {options.out}, allowed is a name with .png or .svg")
    count = TokenCounter.of(options.tokenizer)
    files = [file for path in options.files for file in read_files(path, count)]
    turns = [turn for file in files for turn in file.turns]
    jobs = jobs_among(turns)
    found = describe(files, jobs)
    if options.what == "convert":
        lines = (turn.model_dump_json(exclude_defaults=True) for turn in turns)
        write_whole(options.out, "".join(f"{line}\n" for line in lines))
        print(f"{len(turns)} turns of {len(jobs)} jobs written to {options.out}", file=sys.stderr)
    elif options.out is not None:
        draw_trace(jobs, options.out)
        print(f"drawn in {options.out}", file=sys.stderr)
    if options.what == "show" and not options.json:
        print(report(found))
    print_document(found, is_asked_for=options.json)
    return DONE


def describe(files: Sequence[TracedFile], jobs: Jobs) -> dict[str, Any]:
    """What is in these logs, as a JSON document; a quantile of nothing is None."""
    turns = [turn for job in jobs.values() for turn in job]
    pairs = [pair for job in jobs.values() for pair in pairwise(job)]
    played = [plan for job in with_children(job_plans(jobs)) for plan in job.turns]
    values: dict[str, Sequence[float]] = {
        "turns": [len(job) for job in jobs.values()],
        "first_prompt_tokens": [job[0].prompt_tokens for job in jobs.values()],
        "last_prompt_tokens": [job[-1].prompt_tokens for job in jobs.values()],
        "growth_tokens": [after.prompt_tokens - before.prompt_tokens for before, after in pairs],
        "output_tokens": [turn.output_tokens for turn in turns],
        "tool_s": [turn.tool_s for turn in turns if turn.tool_s is not None],
        "pause_s": [plan.pause_s for plan in played if plan.pause_s > 0.0],
        "kept_share": [kept_share(*pair) for pair in pairs],
    }
    broken = sorted(pairs, key=lambda pair: kept_share(*pair))
    return {
        "kinds": dict(Counter(file.kind for file in files)),
        "counted": dict(Counter(turn.counted for turn in turns)),
        "jobs": len(jobs),
        "sub_agents": sum(job[0].parent_job_id is not None for job in jobs.values()),
        "turns": len(turns),
        "tools": dict(Counter(map(_tool, filter(_called, turns))).most_common(_MAX_TOOLS)),
        "quantiles": {
            name: [quantile(found, share) for share in _SHARES] for name, found in values.items()
        },
        "later_turns": len(pairs),
        "broken_turns": sum(kept_share(*pair) < _WHOLE for pair in pairs),
        "broken": [
            {
                "job_id": after.job_id,
                "turn": after.turn,
                "prompt_tokens": after.prompt_tokens,
                "kept_share": kept_share(before, after),
            }
            for before, after in broken[:_MAX_BROKEN]
            if kept_share(before, after) < _WHOLE
        ],
    }


def kept_share(before: TracedTurn, after: TracedTurn) -> float:
    """Share of a context, prompt and output, that the next prompt begins with; at most, where the
    log does not tell."""
    kept = after.prompt_tokens if after.kept_tokens is None else after.kept_tokens
    return min(1.0, kept / (before.prompt_tokens + before.output_tokens))


def _called(turn: TracedTurn) -> bool:
    return turn.command is not None


def _tool(turn: TracedTurn) -> str:
    """The key of its command, as a server keeps it."""
    return command_key(turn.command or "")


def report(found: Mapping[str, Any]) -> str:
    """The document as a few lines and a table."""
    kinds = ", ".join(f"{number} {kind}" for kind, number in found["kinds"].items())
    counted = ", ".join(f"{number} by {how}" for how, number in found["counted"].items())
    rows = []
    for name, numbers in found["quantiles"].items():
        form = ".0%" if name == "kept_share" else ".1f" if name.endswith("_s") else ",.0f"
        rows.append((_NAMES[name], *(cell(number, form) for number in numbers)))
    lines = [
        f"{found['jobs']} jobs, {found['sub_agents']} of them sub-agents, {found['turns']} turns; "
        f"files: {kinds}; tokens: {counted}",
        "",
        text_table(("", *(f"p{share:.0%}".rstrip("%") for share in _SHARES)), rows),
        "",
        "tools: " + (", ".join(f"{tool} {n}" for tool, n in found["tools"].items()) or "none"),
        f"{found['broken_turns']} of {found['later_turns']} later prompts do not go on from the "
        "context before them",
    ]
    lines += [
        f"  {each['job_id']} turn {each['turn']}: {each['kept_share']:.0%} kept, "
        f"{each['prompt_tokens']:,} tokens"
        for each in found["broken"]
    ]
    return visible("\n".join(lines), keep="\n")


def draw_trace(jobs: Jobs, path: Path) -> Path:
    """Write a picture of two panels."""
    from ..figures import BLUE, VERMILLION, common_style, new_figure, save

    with common_style():
        figure = new_figure(9.0, 3.6)
        prompts, tools = figure.subplots(1, 2)
        for turns in list(jobs.values())[:_MAX_LINES]:
            tokens = [turn.prompt_tokens for turn in turns]
            prompts.plot(range(1, len(tokens) + 1), tokens, color=BLUE, alpha=0.4, linewidth=0.8)
        prompts.set(xlabel="turn", ylabel="tokens of the prompt", title="Prompts of each job")
        ran = sorted(t.tool_s for turns in jobs.values() for t in turns if t.tool_s)
        if ran:
            shares = [(number + 1) / len(ran) for number in range(len(ran))]
            tools.step(ran, shares, where="post", color=VERMILLION)
            tools.set_xscale("log")
        tools.set(xlabel="seconds", ylabel="share of tools that took at most", title="Tools")
        tools.set_ylim(0.0, 1.0)
        num_turns = sum(map(len, jobs.values()))
        return save(figure, path, conditions=f"{len(jobs)} jobs, {num_turns} turns")


def _parser() -> argparse.ArgumentParser:
    kinds = "".join(f"\n  {name}" for name in NAMES)
    parser = command_parser("trace", (__doc__ or "") + kinds[1:])
    parser.add_argument("what", choices=("show", "convert"))
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, metavar="FILE", help="picture of show; convert's lines")
    parser.add_argument("--force", action="store_true", help="write over --out")
    counted = "tokenizer.json that counts tokens where a log has no usage (else 4 characters each)"
    parser.add_argument("--tokenizer", metavar="FILE", help=counted)
    add_json(parser)
    return parser
