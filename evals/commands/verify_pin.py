"""`agentkv verify-pin`: does this server keep a job's KV cache while its tools run?

Runs one job of five turns with a pause after each, reads the server's own metrics around every
turn and in every pause, and leaves a second job alone until its TTL is over. Use it on a server
that is otherwise idle.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import agentkv

from ..options import DONE, FAILED, add_json, add_kept, add_server, command_parser, seconds
from ..pin_experiment import PinExperiment, PinRun, TTLTrial, TurnRow
from ..rows import require_writable, write_whole
from ..server import ServerUnderTest, TurnError

NO_POLICY_HINT = (
    "the server has no agentkv routes, so it runs a stock policy, which frees a turn's blocks when"
    " the turn ends: start it with --scheduling-policy continuum"
)
HEADINGS = (
    *("turn", "prompt tok", "cached tok", "output tok", "latency ms"),
    *("before", "after", "expected", " full", "  gap"),
)
LEGEND = (
    "blocks in use before and after each turn; expected = ceil((prompt + output) / block size),"
    "\nfull = whole blocks, the ones that can stay (the last token sampled has no KV yet);"
    "\ngap = largest change while the tool ran"
)


def main(argv: Sequence[str]) -> int:
    """0: pins hold and end as they should; 1: they do not. Raises where nothing can be checked."""
    options = _parser().parse_args(argv)
    # With --json, standard output carries the document and nothing else.
    say = partial(print, file=sys.stderr if options.json else sys.stdout, flush=True)
    result_file = None if options.out is None else Path(options.out) / "verify_pin.json"
    if result_file is not None:
        require_writable(result_file, force=options.force)
    try:
        run = _experiment(options, say)
    except TurnError as error:
        print(f"the run broke off: {error}", file=sys.stderr)
        return FAILED
    checks = judge(run)
    say("\n".join([ttl_line(run.ttl_trial), "", *verdict_lines(run, checks)]))
    has_passed = not any(checks.values())
    document = {
        "agentkv_version": agentkv.__version__,
        "passed": has_passed,
        "checks": [
            {"name": name, "passed": not problems, "problems": problems}
            for name, problems in checks.items()
        ],
        **run.as_dict(),
    }
    if options.json:
        print(json.dumps(document))
    if result_file is not None:
        try:
            write_whole(result_file, json.dumps(document, indent=2) + "\n")
        except OSError as error:
            print(f"{result_file} cannot be written: {error}", file=sys.stderr)
            return FAILED
        say(f"written to {result_file}")
    return DONE if has_passed else FAILED


def _experiment(options: argparse.Namespace, say: Callable[..., None]) -> PinRun:
    with ServerUnderTest(options.base_url, api_key=options.api_key) as server:
        facts = server.facts(options.model)
        pool = server.block_pool(facts)
        policy = "no agentkv routes" if facts.policy is None else f"policy {facts.policy}"
        say(f"{facts.model}, {policy}, {pool.num_blocks} blocks of {pool.block_size} tokens")
        say(LEGEND)
        say(table_line(HEADINGS, "what happened"))
        return PinExperiment(
            server,
            facts,
            pool,
            gap_s=options.gap_s,
            fallback_ttl_s=options.ttl,
            on_row=lambda row: say(row_line(row, pool.block_size)),
        ).run(options.base_url)


def row_line(row: TurnRow, block_size: int) -> str:
    """One turn as a line under the headings."""
    usage = row.usage
    tokens = (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens)
    expected = (usage.blocks_touched(block_size), usage.blocks_full(block_size))
    gap = "-" if row.is_last_step else f"{row.change_in_gap_blocks:+d}"
    blocks = (row.blocks_before, row.blocks_after, *expected, gap)
    values = (row.turn, *tokens, f"{row.latency_s * 1e3:.0f}", *blocks)
    return table_line(values, f"{row.user_prompt} {row.happened}")


def table_line(values: Sequence[object], text: str) -> str:
    """Columns as wide as their headings: rows are printed one by one as turns end."""
    cells = (f"{value:>{len(head)}}" for value, head in zip(values, HEADINGS, strict=True))
    return "  ".join([*cells, text])


def ttl_line(trial: TTLTrial) -> str:
    """The second job in one sentence."""
    ttl = "not told" if trial.ttl_s is None else f"{trial.ttl_s:.2f} s"
    seen = f"{trial.blocks_at_end} blocks in use after {trial.waited_s:.1f} s"
    if trial.held_s is not None:
        seen = f"free {trial.held_s:.2f} s after the turn"
    return f"left alone: {trial.blocks_after} blocks after its turn, TTL {ttl}, {seen}"


def judge(run: PinRun) -> dict[str, list[str]]:
    """What speaks against each claim, in the order in which the experiment meets them."""
    *turns, last = run.turns
    held = [run.blocks_at_start, *(row.blocks_after for row in turns)]
    left = last.blocks_after - run.blocks_at_start
    problems = {
        "usage constant in every gap": [
            problem for row in turns if (problem := _move_in_gap(row, run.blocks_at_start))
        ],
        "usage grows turn by turn": [
            f"turn {turn}: {later} blocks, {earlier} before it"
            for turn, (earlier, later) in enumerate(pairwise(held), start=1)
            if later <= earlier
        ],
        "usage zero after the last step": [f"turn {last.turn}: {left} blocks are still held"]
        if left
        else [],
        "usage zero after a TTL runs out": _left_after_ttl(run.ttl_trial),
        "cached tokens on the next turn": [
            f"turn {row.turn}: none of {row.usage.prompt_tokens} prompt tokens were cached"
            for row in run.turns[1:]
            if row.usage.cached_tokens <= 0
        ],
        "no other traffic during the run": [],
    }
    traffic = problems["no other traffic during the run"]
    if run.blocks_at_start:
        traffic.append(f"{run.blocks_at_start} blocks were held before the run began")
    if (number := run.num_foreign_requests) > 0:
        traffic.append(f"{number} other requests ran, so usage is not this job's alone")
    return problems


def _move_in_gap(row: TurnRow, blocks_at_start: int) -> str | None:
    if row.blocks_after <= blocks_at_start:
        return f"turn {row.turn}: no block was held when the turn had ended"
    if not row.change_in_gap_blocks:
        return None
    readings = ", ".join(map(str, row.gap_blocks))
    return f"turn {row.turn}: {row.blocks_after} blocks after it, then {readings}"


def _left_after_ttl(trial: TTLTrial) -> list[str]:
    if trial.blocks_after <= trial.blocks_before:
        return ["no block was held after the second job's turn, so no TTL could run out"]
    if trial.held_s is not None:
        return []
    left = trial.blocks_at_end - trial.blocks_before
    return [f"{left} blocks are still held {trial.waited_s:.1f} s after the turn"]


def verdict_lines(run: PinRun, checks: Mapping[str, Sequence[str]]) -> list[str]:
    """Each check with its reasons; a hint at the end if a stock policy explains the failure."""
    lines = []
    for name, problems in checks.items():
        lines.append(f"{'FAIL' if problems else 'ok  '}  {name}")
        lines.extend(f"        {problem}" for problem in problems)
    if run.policy is None and any(checks.values()):
        lines.append(NO_POLICY_HINT)
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("verify-pin", __doc__)
    add: Any = parser.add_argument
    add("--base-url", required=True, help="the server, with or without /v1")
    add_server(parser)
    ttl_help = "how long a pin may last on a server that does not tell (default %(default)s)"
    gap_help = "pause after each turn; must be shorter than the TTL (default %(default)s)"
    add("--ttl", type=seconds, default=10.0, metavar="S", help=ttl_help)
    add("--gap-s", type=seconds, default=1.0, metavar="S", help=gap_help)
    add_json(parser)
    add_kept(parser, "also write verify_pin.json into this folder")
    return parser
