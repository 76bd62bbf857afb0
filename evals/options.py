"""Flags that several measuring commands share: what is measured, and where results go."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from agentkv.command_line import positive, seconds, whole_number

from .traces.logs import is_event_log
from .workload.kinds import TOOLS
from .workload.plans import RECORDED, Workload
from .workload.workloads import WORKLOADS, make_workload

_WORKLOAD_FLAGS = (
    *("trace", "jobs", "duration", "jps", "concurrency", "arrivals", "turns", "tools"),
    *("max_context_tokens", "token_scale", "seed"),
)


def loads(text: str) -> dict[str, float]:
    """Type of a flag: loads by client."""
    try:
        parts = [part.partition("=") for part in text.split(",")]
        return {name: float(load) for name, _, load in parts}
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text}: must be clients and loads, such as alice=10,bob=1"
        ) from None


def rates(text: str) -> list[float]:
    """Type of a flag: jobs per second, several."""
    return [positive(part, "rates") for part in text.split(",")]


def add_server(parser: Any, model: str = "default: the first that the server offers") -> None:
    """Add `--model` with its help text, and `--api-key` of a running server."""
    parser.add_argument("--model", help=model)
    parser.add_argument("--api-key", help="sent as a bearer token")


def add_kept(parser: Any, out: str, *, is_required: bool = False, resume: str = "") -> None:
    """Add `--out` with its help text and `--force`; `--resume` where a help text is given."""
    parser.add_argument("--out", metavar="DIR", required=is_required, help=out)
    if resume:
        parser.add_argument("--resume", action="store_true", help=resume)
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
    add("--duration", type=seconds, metavar="S", help="instead: all that arrive within S seconds")
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
    is_recorded = False
    if options.trace is not None:
        defaults = defaults | {"workload": "trace"}
        has_load = options.jps is not None or options.concurrency is not None
        is_recorded = not has_load and is_event_log(Path(options.trace))
    options.arrivals = RECORDED if is_recorded else None
    is_settled = {
        "jobs": options.duration is not None or is_recorded,
        "duration": options.jobs is not None or is_recorded,
        "jps": options.concurrency is not None or is_recorded,
        "concurrency": options.jps is not None or is_recorded,
    }
    for name, value in defaults.items():
        if getattr(options, name) is None and not is_settled.get(name, False):
            setattr(options, name, value)


def workload_of(options: argparse.Namespace) -> Workload:
    """Make the workload that the flags describe; raises InputError if there is none."""
    return make_workload(
        options.workload or "reference",
        seed=options.seed,
        num_jobs=options.jobs,
        duration_s=options.duration,
        jps=options.jps,
        concurrency=options.concurrency,
        arrivals=options.arrivals,
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
