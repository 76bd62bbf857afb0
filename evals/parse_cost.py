"""What reading a reply costs: microseconds per reply of 4 kB, and the worst of hostile 200 kB.

A typical reply is prose, a thought and two calls, in one of the formats that models write. A
hostile one repeats a piece of a format, alone or behind an opener. Run it on an otherwise idle
machine: `python -m agentkv.evals.parse_cost`. Exit status 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from statistics import median, quantiles
from typing import Any

from agentkv.tool_calls import parse_tool_calls

from .arguments import whole_number
from .hostile_replies import NUM_CHARS, hostile_replies
from .provenance import provenance
from .typical_replies import typical_replies

PASSED, FAILED = 0, 1
TARGET_MEDIAN_US = 200.0
TARGET_HOSTILE_MS = 50.0
_NUM_WORST = 5


def main(argv: Sequence[str] | None = None) -> int:
    """0: typical and hostile replies meet their targets; 1: one misses it."""
    options = _parser().parse_args(argv)
    say = partial(print, file=sys.stderr if options.json else sys.stdout, flush=True)
    rows = [measure(name, reply, options.num) for name, reply in typical_replies().items()]
    for row in rows:
        say("{format:12} median {median_us:6.1f} us, p99 {p99_us:6.1f} us, n {n}".format(**row))
    hostile = measure_hostile()
    worst = sorted(hostile, key=lambda row: row["ms"], reverse=True)[:_NUM_WORST]
    for row in worst:
        say("hostile      {ms:6.1f} ms  {text}".format(**row))
    has_passed = (
        all(row["median_us"] <= TARGET_MEDIAN_US for row in rows)
        and worst[0]["ms"] <= TARGET_HOSTILE_MS
    )
    targets = {"median_us": TARGET_MEDIAN_US, "hostile_ms": TARGET_HOSTILE_MS}
    document = {
        **provenance(),
        "targets": targets,
        "num_hostile": len(hostile),
        "hostile_chars": NUM_CHARS,
        "slowest_hostile_ms": worst[0]["ms"],
        "slowest_hostile": worst,
        "rows": rows,
    }
    print(json.dumps({"passed": has_passed, **document}))
    return PASSED if has_passed else FAILED


def measure(name: str, reply: str, num: int) -> dict[str, Any]:
    """The times of one typical reply, read again and again."""
    num_calls = len(parse_tool_calls(reply))
    times_us = []
    for _ in range(num):
        start_ns = time.perf_counter_ns()
        parse_tool_calls(reply)
        times_us.append((time.perf_counter_ns() - start_ns) / 1e3)
    return {
        "format": name,
        "chars": len(reply),
        "num_calls": num_calls,
        "median_us": median(times_us),
        "p99_us": quantiles(times_us, n=100)[-1],
        "n": num,
    }


def measure_hostile() -> list[dict[str, Any]]:
    """The processor time of every hostile reply; a slow one is read four times, the best counts."""
    rows = []
    for name, text in hostile_replies():
        took_ms = _processor_ms(text)
        if took_ms > TARGET_HOSTILE_MS / 2:
            took_ms = min(took_ms, *(_processor_ms(text) for _ in range(3)))
        rows.append({"text": name, "ms": took_ms})
    return rows


def _processor_ms(text: str) -> float:
    start_s = time.process_time()
    parse_tool_calls(text)
    return (time.process_time() - start_s) * 1e3


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentkv.evals.parse_cost", description=__doc__)
    parser.add_argument(
        "--num",
        type=whole_number(2),
        default=1000,
        help="times each reply is read (default %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document alone")
    return parser


if __name__ == "__main__":
    sys.exit(main())
