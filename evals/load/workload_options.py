"""The flags that describe a workload: the same for `bench`, `compare` and `simulate`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .arrivals import ARRIVALS
from .plans import Workload, WorkloadError
from .tool_times import TOOLS
from .workloads import WORKLOADS, make_workload

_NAMES = (
    "workload",
    "trace",
    "jobs",
    "duration",
    "jps",
    "concurrency",
    "arrivals",
    "turns",
    "tools",
    "max_context_tokens",
    "token_scale",
    "seed",
)


def add_workload_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags, all without a default of their own but `--seed`: see `fill_in`."""
    add = parser.add_argument_group("workload").add_argument
    add("--workload", metavar="NAME", help=f"one of {', '.join(WORKLOADS)} (default reference)")
    add("--trace", metavar="FILE", help="jobs as JSON lines, a line a turn; implies trace")
    add("--jobs", type=int, metavar="N", help="how many jobs")
    add("--duration", type=float, metavar="S", help="instead: all that arrive within S seconds")
    add("--jps", type=float, metavar="R", help="jobs that arrive per second")
    add("--concurrency", type=int, metavar="N", help="instead: always N jobs at once")
    add(
        "--arrivals",
        metavar="HOW",
        help=f"{' or '.join(ARRIVALS)} at --jps, or the times themselves, such as 0,0.5,3 "
        "(default poisson)",
    )
    add("--turns", type=int, metavar="N", help="turns a job at most")
    add(
        "--tools",
        metavar="HOW",
        help=f"{' or '.join(TOOLS)}, or a trace file to draw commands and times from "
        "(default recorded)",
    )
    add("--max-context-tokens", type=int, metavar="N", help="a job ends before it has more")
    add("--token-scale", type=float, metavar="X", help="multiplies all token counts (default 1)")
    add("--seed", type=int, default=0, help="of jobs and arrivals (default %(default)s)")


def fill_in(options: argparse.Namespace, defaults: dict[str, Any]) -> None:
    """Set what was not given; one way to say how many, or how fast, keeps out the other's."""
    if options.trace is not None:
        defaults = defaults | {"workload": "trace"}
    given_times = options.arrivals is not None and options.arrivals not in ARRIVALS
    taken = {
        "jobs": options.duration is not None or given_times,
        "duration": options.jobs is not None or given_times,
        "jps": options.concurrency is not None or given_times,
        "concurrency": options.jps is not None or given_times,
    }
    for name, value in defaults.items():
        if getattr(options, name) is None and not taken.get(name, False):
            setattr(options, name, value)


def workload_of(options: argparse.Namespace) -> Workload:
    """The workload the flags describe; raises WorkloadError for one that cannot be."""
    arrivals = _arrivals(options.arrivals or "poisson")
    _check_arrivals(options, arrivals)
    return make_workload(
        options.workload or "reference",
        seed=options.seed,
        num_jobs=options.jobs,
        duration_s=options.duration,
        jps=options.jps,
        concurrency=options.concurrency,
        arrivals=arrivals,
        max_turns=options.turns,
        tools=_tools(options.tools or "recorded"),
        trace=None if options.trace is None else Path(options.trace),
        max_context_tokens=options.max_context_tokens,
        token_scale=1.0 if options.token_scale is None else options.token_scale,
    )


def describe_workload(options: argparse.Namespace, workload: Workload) -> dict[str, Any]:
    """How the workload was made, for the run's files."""
    described = {name: getattr(options, name) for name in _NAMES if name != "workload"}
    return {"name": workload.name, **described, "num_jobs": len(workload.jobs)}


def _check_arrivals(options: argparse.Namespace, arrivals: str | Sequence[float]) -> None:
    """What one flag says of when jobs arrive, no other may say otherwise, or in vain."""
    if options.arrivals in ARRIVALS and options.concurrency is not None:
        raise WorkloadError(
            f"--arrivals {options.arrivals}: with --concurrency, jobs begin as others end: give "
            "--jps R for arrivals"
        )
    if not isinstance(arrivals, str):
        for name in ("jps", "duration", "concurrency"):
            if getattr(options, name) is not None:
                raise WorkloadError(f"--arrivals: the times are given: leave out --{name}")


def _arrivals(text: str) -> str | Sequence[float]:
    if text in ARRIVALS:
        return text
    try:
        return [float(time) for time in text.split(",")]
    except ValueError:
        allowed = " or ".join(ARRIVALS)
        raise WorkloadError(
            f"--arrivals: got {text!r}, allowed is {allowed}, or seconds such as 0,0.5,3"
        ) from None


def _tools(text: str) -> str | Path:
    return text if text in TOOLS or not Path(text).exists() else Path(text)
