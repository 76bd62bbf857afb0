"""Flags that several measuring commands share: what is measured, and where results go."""

import argparse
import re
from pathlib import Path
from typing import Any

from agentkv.command_line import positive, whole_number

from .workload.kinds import TOOLS
from .workload.plans import Workload
from .workload.workloads import WORKLOADS, make_workload

_WORKLOAD_FLAGS = (
    *("trace", "jobs", "jps", "concurrency", "turns", "tools"),
    *("max_context_tokens", "token_scale", "seed"),
)


def loads(text: str) -> dict[str, float]:
    """Type of a flag: loads by client."""
    parts = [part.partition("=") for part in text.split(",")]
    if not all(re.fullmatch(r"[\w.-]+", name) for name, _, _ in parts):
        raise argparse.ArgumentTypeError(
            f"got {text}, must be clients and loads, such as alice=10,bob=1"
        )
    return {name: positive(load, "a load") for name, _, load in parts}


def rates(text: str) -> list[float]:
    """Type of a flag: jobs per second, several."""
    return [positive(part, "rates") for part in text.split(",")]


def add_server(parser: Any, model: str = "default: the first that the server offers") -> None:
    """Add `--model` with its help text, and `--api-key` of a running server."""
    parser.add_argument("--model", help=model)
    parser.add_argument("--api-key", help="sent as a bearer token")


def add_kept(parser: Any, out: str, *, is_required: bool = False) -> None:
    """Add `--out` with its help text, and `--force`."""
    parser.add_argument("--out", metavar="DIR", required=is_required, help=out)
    parser.add_argument("--force", action="store_true", help="overwrite files that exist")


def add_workload_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `bench` and `simulate` that describe a workload.

    None of them but `--seed` has a default of its own: see `fill_in`.
    """
    add, count = parser.add_argument_group("workload").add_argument, whole_number(1)
    add("--workload", metavar="NAME", help=f"one of {', '.join(WORKLOADS)} (default reference)")
    trace = "a log, or a folder of logs, of agents or of a server; implies the workload trace"
    add("--trace", metavar="FILE", help=trace)
    add("--jobs", type=count, metavar="N", help="how many jobs")
    add("--jps", type=positive, metavar="R", help="jobs that arrive per second")
    add("--concurrency", type=count, metavar="N", help="instead: always N jobs at once")
    add("--turns", type=count, metavar="N", help="turns a job at most")
    tools = f"{' or '.join(TOOLS)}, or a trace file to draw commands and times from"
    add("--tools", metavar="HOW", help=f"{tools} (default recorded, longtail of longtail)")
    add("--max-context-tokens", type=count, metavar="N", help="a job ends before it has more")
    scaled = "multiplies all token counts (default 1)"
    add("--token-scale", type=positive, metavar="X", help=scaled)
    add("--seed", type=int, default=0, help="of jobs and arrivals (default %(default)s)")


def fill_in(options: argparse.Namespace, defaults: dict[str, Any]) -> None:
    """Apply defaults to flags that were left out, unless another flag says the same thing."""
    if options.trace is not None:
        defaults = defaults | {"workload": "trace"}
    has_load = options.jps is not None or options.concurrency is not None
    for name, value in defaults.items():
        is_said = name in ("jps", "concurrency") and has_load
        if getattr(options, name) is None and not is_said:
            setattr(options, name, value)


def workload_of(options: argparse.Namespace) -> Workload:
    """Make the workload that the flags describe; raises InputError if there is none."""
    return make_workload(
        options.workload or "reference",
        seed=options.seed,
        num_jobs=options.jobs,
        jps=options.jps,
        concurrency=options.concurrency,
        max_turns=options.turns,
        tools=options.tools,
        trace=None if options.trace is None else Path(options.trace),
        max_context_tokens=options.max_context_tokens,
        token_scale=1.0 if options.token_scale is None else options.token_scale,
    )


def describe_workload(options: argparse.Namespace, workload: Workload) -> dict[str, Any]:
    """How the workload was made, for the run's files."""
    flags = {name: getattr(options, name) for name in _WORKLOAD_FLAGS}
    described = {"name": workload.name, **flags, "num_jobs": len(workload.jobs)}
    if workload.jobs_per_step is not None:
        described["jobs_per_step"] = workload.jobs_per_step
    return described
