"""`agentkv bench`: put many multi-turn agent jobs on a running server and measure what they take.

Jobs arrive in an open loop, their tools sleep as long as real ones ran, and every turn goes through
the agentkv client, so that the server's policy sees what it would see of real agents. The last line
on standard output is one JSON document. Ctrl-C ends the run and keeps what was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkv.errors import AgentKVError

from ..options import (
    add_workload_options,
    describe_workload,
    fill_in,
    seconds,
    whole_number,
    workload_of,
)
from ..outcomes import RunOutcome
from ..player.run import MODES, LoadOptions, load_server
from ..policies import policy_names, server_policy
from ..summary import summarize

DONE, FAILED, BAD_USAGE = 0, 1, 2
DEFAULTS = {"jps": 1.0, "duration": 60.0}
DEFAULT_BASE_URL = "http://127.0.0.1:8000/v1"


def main(argv: Sequence[str] | None = None) -> int:
    """0: all jobs done; 1: some failed or were cut; 2: nothing could be measured."""
    options = _parser().parse_args(argv)
    fill_in(options, DEFAULTS)
    try:
        if options.policy is not None:
            server_policy(options.policy)
        workload = workload_of(options)
        described = describe_workload(options, workload)
        run, reason = load_server(workload, described, _load_options(options))
    except (AgentKVError, OSError) as error:
        print(f"agentkv bench: {error}", file=sys.stderr)
        return BAD_USAGE
    except KeyboardInterrupt:
        print("agentkv bench: interrupted before the first request", file=sys.stderr)
        return FAILED
    if reason is not None:
        print(f"agentkv bench: ended early: {reason}", file=sys.stderr)
    if not options.json:
        print(report(run))
    print(json.dumps(document(run, reason)), flush=True)
    return DONE if reason is None and all(job.status == "done" for job in run.jobs) else FAILED


def document(run: RunOutcome, reason: str | None) -> dict[str, Any]:
    """All there is to know of a run but its rows."""
    return {
        **summarize(run),
        "ended_early": reason,
        "workload": dict(run.workload),
        "server": dict(run.server),
        "metadata": dict(run.metadata),
    }


def _load_options(options: argparse.Namespace) -> LoadOptions:
    config = {name: value for name, value in vars(options).items() if name != "api_key"}
    return LoadOptions(
        base_url=options.base_url,
        policy=options.policy,
        model=options.model,
        api_key=options.api_key,
        mode=options.mode,
        request_timeout_s=options.timeout_s,
        limit_s=options.limit_s,
        max_output_tokens=options.max_output_tokens,
        out=None if options.out is None else Path(options.out),
        force=options.force,
        config=config,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentkv bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="How many and how fast, if nothing is given: "
        f"--jps {DEFAULTS['jps']:g} --duration {DEFAULTS['duration']:g}",
    )
    add = parser.add_argument_group("server").add_argument
    add("--base-url", default=DEFAULT_BASE_URL, metavar="URL", help="default %(default)s")
    add(
        "--policy",
        metavar="NAME",
        help="what the server must run, checked where it tells; one of "
        f"{', '.join(policy_names())} (default: what it runs)",
    )
    add("--model", help="default: the first that the server offers")
    add("--api-key", help="sent as a bearer token")
    add_workload_options(parser)
    add = parser.add_argument_group("run").add_argument
    add(
        "--mode",
        choices=MODES,
        default="replay",
        help="replay: exact token counts (vLLM only); live: a chat, the model answers freely",
    )
    add(
        "--max-output-tokens",
        type=whole_number(1),
        default=512,
        metavar="N",
        help="in live mode (512)",
    )
    add("--timeout-s", type=seconds, default=600.0, metavar="S", help="of one turn (600)")
    add("--limit-s", type=seconds, metavar="S", help="cut what still runs after so long")
    add("--out", metavar="DIR", help="write turns.jsonl as turns end, and run.json")
    add("--force", action="store_true", help="overwrite a run in --out")
    add("--json", action="store_true", help="print the JSON document alone")
    return parser


if __name__ == "__main__":
    sys.exit(main())


# MERGED: One run as a few lines of text.


def report(run: RunOutcome) -> str:
    """What happened to the jobs, how long they took, and each turn in a line."""
    found = summarize(run)
    lines = [
        f"{run.policy}, workload {run.workload.get('name')}, {_rate(run.workload)}: "
        f"{found['jobs']} jobs: {found['completed']} done, {found['failed']} failed, "
        f"{found['cut']} cut, in {found['duration_s']:.1f} s",
        _row("job duration", found, ("mean_s", "p50_s", "p90_s", "p99_s", "max_s")),
        _row(
            "first token",
            found,
            ("ttft_mean_s", "ttft_first_p99_s", "ttft_continuing_p99_s", "ttft_continuing_max_s"),
        ),
        f"cache         {_share(found['hit_rate'])} of continuing prompts, "
        f"{found['recomputed_tokens']} tokens computed again, "
        f"{_count(found['preemptions'])} preemptions",
        f"output        {found['output_tokens']} tokens, "
        f"{_number(found['tokens_per_s'])} per second",
        "",
        " turn  prompt tokens  cached tokens  latency ms  first token ms",
    ]
    columns = ("prompt_tokens", "cached_tokens", "latency_ms", "ttft_ms")
    by_turn = zip(*(found[f"per_turn_avg_{name}"] for name in columns), strict=True)
    for turn, (prompt, cached, latency, first) in enumerate(by_turn, start=1):
        lines.append(
            f"{turn:5}  {_number(prompt):>13}  {_number(cached):>13}  {_number(latency):>10}  "
            f"{_number(first):>14}"
        )
    return "\n".join(lines + _errors(run))


def _rate(workload: Mapping[str, Any]) -> str:
    if workload.get("concurrency") is not None:
        return f"{workload['concurrency']} at once"
    return "given times" if workload.get("jps") is None else f"{workload['jps']:g} jobs/s"


def _row(title: str, found: Mapping[str, Any], names: tuple[str, ...]) -> str:
    shown = (f"{name.removesuffix('_s')} {_seconds(found[name])}" for name in names)
    return f"{title:13} {', '.join(shown)}"


def _errors(run: RunOutcome) -> list[str]:
    """The different reasons why jobs failed, most frequent first."""
    reasons = [job.turns[-1].error or "" for job in run.jobs if job.status == "failed"]
    counted = sorted({reason: reasons.count(reason) for reason in reasons}.items(), key=_by_count)
    return (
        ["", *(f"failed ({count}): {reason}" for reason, count in counted[:3])] if counted else []
    )


def _by_count(entry: tuple[str, int]) -> int:
    return -entry[1]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _count(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _share(value: float | None) -> str:
    return "an unknown share" if value is None else f"{value:.1%}"
