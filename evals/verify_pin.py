"""`agentkv verify-pin`: does this server keep a job's KV cache while its tools run?

Runs one job of five turns with a pause after each, reads the server's own metrics around every
turn and in every pause, and leaves a second job alone until its TTL is over. Use it on a server
that is otherwise idle.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx

import agentkv
from agentkv.errors import AgentKVServerError

from .arguments import seconds
from .pin_experiment import PinExperiment, Plan
from .pin_report import LEGEND, header, row_line, ttl_line, verdict_lines
from .pin_rows import PinRun, TurnRow
from .pin_server import PinServer, ServerFacts, TurnError
from .pin_verdict import Check, judge
from .server_metrics import PageError

PASSED, FAILED, BAD_USAGE = 0, 1, 2
_DEFAULT_TTL_S = 10.0


def main(argv: Sequence[str] | None = None) -> int:
    """0: pins hold and end as they should; 1: they do not, and why; 2: nothing could be checked."""
    options = _parser().parse_args(argv)
    # With --json, standard output carries the document and nothing else.
    say = partial(print, file=sys.stderr if options.json else sys.stdout, flush=True)
    result_file = _result_file(options)
    if result_file is not None and result_file.exists() and not options.force:
        print(f"{result_file} exists: choose another --out, or --force", file=sys.stderr)
        return BAD_USAGE
    try:
        if result_file is not None:
            result_file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"{result_file} cannot be written: {error}", file=sys.stderr)
        return BAD_USAGE
    try:
        run = _experiment(options, say)
    except TurnError as error:
        print(f"the run broke off: {error}", file=sys.stderr)
        return FAILED
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        print(f"{options.base_url}: cannot read from this server: {error}", file=sys.stderr)
        return BAD_USAGE
    except (PageError, AgentKVServerError) as error:
        print(f"{options.base_url}: {error}", file=sys.stderr)
        return BAD_USAGE
    checks = judge(run)
    say("\n".join([ttl_line(run.ttl_trial), "", *verdict_lines(run, checks)]))
    document = _document(run, checks)
    if options.json:
        print(json.dumps(document))
    is_kept = result_file is None or _write(result_file, document, say)
    return PASSED if is_kept and all(check.has_passed for check in checks) else FAILED


def _write(result_file: Path, document: dict[str, Any], say: Callable[..., None]) -> bool:
    try:
        result_file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        print(f"{result_file} cannot be written: {error}", file=sys.stderr)
        return False
    say(f"written to {result_file}")
    return True


def _experiment(options: argparse.Namespace, say: Callable[..., None]) -> PinRun:
    with PinServer(options.base_url, api_key=options.api_key) as server:
        facts = server.facts(options.model)
        say(_heading(facts))
        say(LEGEND)
        say(header())

        def show(row: TurnRow) -> None:
            say(row_line(row, facts.pool.block_size))

        plan = Plan(gap_s=options.gap_s, fallback_ttl_s=options.ttl)
        return PinExperiment(server, facts, plan, on_row=show).run(options.base_url)


def _heading(facts: ServerFacts) -> str:
    policy = "no agentkv routes" if facts.policy is None else f"policy {facts.policy}"
    pool = facts.pool
    return f"{facts.model}, {policy}, {pool.num_blocks} blocks of {pool.block_size} tokens"


def _document(run: PinRun, checks: Sequence[Check]) -> dict[str, Any]:
    return {
        "agentkv_version": agentkv.__version__,
        "passed": all(check.has_passed for check in checks),
        "checks": [
            {"name": check.name, "passed": check.has_passed, "problems": list(check.problems)}
            for check in checks
        ],
        **run.as_dict(),
    }


def _result_file(options: argparse.Namespace) -> Path | None:
    return None if options.out is None else Path(options.out) / "verify_pin.json"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentkv verify-pin", description=__doc__)
    parser.add_argument("--base-url", required=True, help="the server, with or without /v1")
    parser.add_argument("--model", help="default: the first that the server offers")
    parser.add_argument("--api-key", help="sent as a bearer token")
    parser.add_argument(
        "--ttl",
        type=seconds,
        default=_DEFAULT_TTL_S,
        metavar="S",
        help="how long a pin may last on a server that does not tell (default %(default)s)",
    )
    parser.add_argument(
        "--gap-s",
        type=seconds,
        default=1.0,
        metavar="S",
        help="pause after each turn; must be shorter than the TTL (default %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument("--out", metavar="DIR", help="also write verify_pin.json into this folder")
    parser.add_argument("--force", action="store_true", help="overwrite what --out holds")
    return parser


if __name__ == "__main__":
    sys.exit(main())
