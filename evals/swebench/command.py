"""`agentkv swebench run | eval | report | demo`: flags, exit status, and what is printed.

Exit status: 0 done, 1 done in part; `agentkv.cli` says what was raised, with 1 or 2.
"""

from __future__ import annotations

import argparse
import inspect
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from agentkv.command_line import (
    DONE,
    FAILED,
    add_json,
    command_parser,
    print_result,
    url,
    whole_number,
)
from agentkv.policies.names import DEFAULT_POLICY, known_policies, server_policy

from ..options import add_server
from ..rows import time_stamp
from .instances import DAEMON_LESS, HUB_NAMES, SUITE, SwebenchError, load_instances

TOOL_FLAG = "--enable-auto-tool-choice"
_COUNT = whole_number(1)
_OF_PLAN = ("model", "base_url", "api_key", "server_flags", "workers", "is_text", "configs")
"""What the plan of a run takes from the flag of that name."""
QUIET = {
    "MSWEA_SILENT_STARTUP": "1",  # a banner on standard output
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # a download of prices, at import
}
Outcome = tuple[int, dict[str, Any], str]
"""Exit status, the document, and the text for people."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status. Raises AgentKVError or OSError."""
    options = _parser().parse_args(argv)
    for name, value in QUIET.items():  # before the first import of mini-swe-agent
        os.environ.setdefault(name, value)
    # containers and servers must not outlive us: SIGTERM ends us as SIGINT does
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with redirect_stdout(sys.stderr):  # standard output is for the result alone
        status, document, text = options.play(options)
    print_result(document, text, is_json=options.json)
    return int(status)


def _run(options: argparse.Namespace) -> Outcome:
    """Let mini-swe-agent work on SWE-bench instances, and keep its patches.

    Every instance is one agent job. Patches and trajectories go to --out as instances end, so that
    Ctrl-C, a crash or a dead server lose nothing that was finished: --resume goes on. Without
    --base-url a server with the --policy is started; flags after `--` go to it.
    """
    from .run import RunPlan, run

    is_own_server = options.base_url is None
    if not is_own_server and options.server_flags:
        what = "flags after -- are for a server that is started here, and --base-url names one that"
        raise SwebenchError(f"{what} runs: drop one of the two")
    if is_own_server and not options.is_text and TOOL_FLAG not in options.server_flags:
        raise SwebenchError(
            "the agent's commands are tool calls, which a server gives only with "
            f"`-- {TOOL_FLAG} --tool-call-parser NAME`: add both, or --text for commands as text"
        )
    policy = options.policy or (DEFAULT_POLICY if is_own_server else None)
    if policy is not None:
        server_policy(policy)  # InputError for a name that there is not
    name = (policy or "run").replace(":", "-")
    plan = RunPlan(
        dataset=options.instances,
        instances=load_instances(options.instances, options.slice, options.filter),
        out=Path(options.out or f"swebench-{name}-{time_stamp()}").absolute(),
        policy=policy,
        **{name: getattr(options, name) for name in _OF_PLAN},
    )
    document = run(plan, resume=options.resume)
    how = ", ".join(f"{number} {status}" for status, number in document["exit_statuses"].items())
    lines = [f"{document['over']} of {document['instances']} instances over: {how or 'none'}"]
    lines += [f"  {name}: {error}" for name, error in document["errors"].items()]
    if (reason := document["ended_early"]) is not None:
        lines.append(f"ended early: {reason}\nthe same command with --resume goes on")
    text = "\n".join([*lines, f"in {document['run']}"])
    return FAILED if reason or document["errors"] else DONE, document, text


def _eval(options: argparse.Namespace) -> Outcome:
    """Grade the patches of a run with the official harness.

    `docker` is the official evaluation, in the instances' images. `daemon-less` runs the suite's
    own eval scripts in bubblewrap and has the harness grade the logs: for the suite of six, and
    labelled as such in every report.
    """
    from .grading import STATUSES, evaluate

    document = evaluate(
        options.run_dir,
        mode=options.mode,
        workers=options.workers,
        time_limit_s=options.time_limit_s,
    )
    counts = ", ".join(f"{document[status]} {status}" for status in STATUSES)
    return DONE, document, f"{document['instances']} instances: {counts}\nin {document['run']}"


def _report(options: argparse.Namespace) -> Outcome:
    """Compare graded runs: pass rate, completion times, cache; as Markdown and JSON."""
    from .report import report

    document = report(options.run_dirs, Path(options.out or options.run_dirs[0]))
    return DONE, document, Path(document["files"]["markdown"]).read_text(encoding="utf-8")


def _demo(options: argparse.Namespace) -> Outcome:
    """Run, grade and report the suite of six, with nothing to fetch.

    --model scripted:gold plays the right solutions and scripted:wrong wrong ones: they show that
    the way from a run to its report works, and say nothing about a model. --model demo starts a
    real server with the 135M demo model, which resolves little or nothing. Exit status 0 means
    that every instance was played and graded, resolved or not.
    """
    from .suite import MODEL_CONFIG, solution_server

    solution = options.model.partition(":")[2]
    if solution and (options.policy or options.base_url):
        raise SwebenchError("--policy and --base-url are for the real server: --model demo")
    out = options.out or f"{tempfile.mkdtemp(prefix='agentkv-swebench-')}/run"
    # a model of this size makes no tool calls
    flags = [] if solution else ["--text", "--config", str(MODEL_CONFIG)]
    flags += ["--config", f"agent.step_limit={options.step_limit}"]
    planned = _parser().parse_args(["run", "--out", out, *flags])
    for name in ("policy", "base_url", "slice", "workers", "resume"):
        setattr(planned, name, getattr(options, name))
    with solution_server(load_instances(SUITE), solution) if solution else nullcontext() as served:
        planned.base_url = served or planned.base_url
        status, _, text = _run(planned)
    print(text, file=sys.stderr)
    _, counts, _ = _eval(_parser().parse_args(["eval", out, "--mode", DAEMON_LESS]))
    _, _, page = _report(_parser().parse_args(["report", out]))
    note = "a 135M model: it resolves little or nothing; the run itself is sound"
    if solution:
        note = "scripted solutions, no model: token counts are words, nothing is cached or pinned"
    return status, {**counts, "model": options.model, "note": note}, page


def _parser() -> argparse.ArgumentParser:
    about = (
        "An agent on SWE-bench, its patches graded by the official harness.\n\n"
        "    agentkv swebench demo --model scripted:gold    # six small instances, no model\n"
        "    agentkv swebench run --instances verified --slice 0:50 --model MODEL --text\n"
        "    agentkv swebench eval RUN && agentkv swebench report RUN"
    )
    parser = command_parser("swebench", about)
    commands = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
    as_it_is = argparse.RawDescriptionHelpFormatter
    for name, play, add_flags in (
        ("run", _run, _add_run_flags),
        ("eval", _eval, _add_eval_flags),
        ("report", _report, _add_report_flags),
        ("demo", _demo, _add_demo_flags),
    ):
        text = inspect.getdoc(play) or ""
        first = text.partition("\n")[0]
        command = commands.add_parser(name, help=first, description=text, formatter_class=as_it_is)
        command.set_defaults(play=play)
        add_flags(command)
        add_json(command)
    return parser


def _add_play_flags(parser: argparse.ArgumentParser, num_workers: int) -> None:
    add = parser.add_argument
    add("--slice", default="", metavar="A:B", help="only these of the instances, as in Python")
    policies = f"of {', '.join(known_policies())} (default {DEFAULT_POLICY}, or the server's)"
    add("--policy", metavar="NAME", help=policies)
    add("--base-url", type=url, metavar="URL", help="a running server; its policy is checked")
    add("--workers", type=_COUNT, default=num_workers, metavar="N", help="default %(default)s")
    add("--out", metavar="DIR", help="the run's folder (default: a new one)")
    add("--resume", action="store_true", help="go on with the run in --out")


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    _add_play_flags(parser, 1)
    add = parser.add_argument
    files = f"a .json, .jsonl or .parquet file, or {', '.join(HUB_NAMES)} from the hub"
    what = f"{files}, or {SUITE}: six small ones of ours (default %(default)s)"
    add("--instances", default=SUITE, metavar="SOURCE", help=what)
    add("--filter", default="", metavar="REGEX", help="only those whose id begins with a match")
    add_server(parser, "name or folder (default: the demo model, or the server's first)")
    add("server_flags", nargs="*", metavar="-- FLAG", help="flags for the server started here")
    what = "commands as fenced text, not as tool calls"
    add("--text", dest="is_text", action="store_true", help=what)
    what = "mini-swe-agent configuration over its SWE-bench default: a file, or key.key=value"
    add("--config", dest="configs", action="append", default=[], metavar="SPEC", help=what)


def _add_eval_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_dir", type=Path, help="the --out of `agentkv swebench run`")
    add("--mode", choices=("docker", DAEMON_LESS), default="docker", help="default: %(default)s")
    add("--workers", type=_COUNT, default=4, help="graded at once by docker (default %(default)s)")
    what = "seconds for the tests of one instance (default %(default)s)"
    add("--time-limit-s", type=_COUNT, default=1800, help=what)


def _add_report_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_dirs", type=Path, nargs="+", metavar="RUN_DIR", help="ratios are to the first")
    add("--out", metavar="DIR", help="default: the first run's folder")


def _add_demo_flags(parser: argparse.ArgumentParser) -> None:
    _add_play_flags(parser, 2)
    models = ("scripted:gold", "scripted:wrong", "demo")
    parser.add_argument("--model", choices=models, default="demo", help="default: %(default)s")
    what = "model calls an instance (default %(default)s)"
    parser.add_argument("--step-limit", type=_COUNT, default=6, metavar="N", help=what)
