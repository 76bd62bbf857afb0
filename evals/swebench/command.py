"""`agentkv swebench run | eval | report | demo`: flags, exit status, and what is printed.

Every subcommand prints one JSON document as its last line on standard output. Exit status: 0 done,
1 done in part or failed, 2 bad usage. Called by `agentkv.cli`.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from agentkv.errors import AgentKVError
from agentkv.policies.names import known_policies, server_policy

from ..options import (
    BAD_USAGE,
    DONE,
    FAILED,
    add_html,
    add_json,
    add_kept,
    html_file,
    positive,
    whole_number,
)
from ..rows import time_stamp
from .instances import (
    DAEMON_LESS,
    HUB_NAMES,
    KINDS,
    MODES,
    SUITE,
    TIME_LIMIT_S,
    HarnessError,
    SwebenchError,
    load_instances,
    select,
)
from .plan import RunPlan

DEFAULT_POLICY = "continuum"
TOOL_FLAG = "--enable-auto-tool-choice"
_AS_GIVEN = "model base_url api_key server_flags jps seed repositories step_limit is_text configs"
"""What the plan of a run takes from the flag of that name."""
_COUNT = whole_number(1)
QUIET = {
    "MSWEA_SILENT_STARTUP": "1",  # a banner on standard output
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # a download of prices, at import
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status."""
    options = _parser().parse_args(argv)
    for name, value in QUIET.items():  # before the first import of mini-swe-agent
        os.environ.setdefault(name, value)
    # containers and servers must not outlive us: SIGTERM ends us as SIGINT does
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    name = f"agentkv swebench {options.subcommand}"
    try:
        status: int = options.play(options)
    except KeyboardInterrupt:
        _tell(f"{name}: interrupted; what is finished is kept")
        return FAILED
    except (AgentKVError, OSError) as error:
        _tell(f"{name}: {error}")
        return FAILED if isinstance(error, (HarnessError, OSError)) else BAD_USAGE
    return status


def _run(options: argparse.Namespace) -> int:
    """Let mini-swe-agent work on SWE-bench instances, and keep its patches.

    Every instance is one agent job. Patches, trajectories and times go to --out as instances end,
    so that Ctrl-C, a crash or a dead server lose nothing that was finished: --resume goes on.
    Without --base-url a server with the --policy is started; flags after `--` go to it.
    """
    policy = options.policy or (None if options.base_url else DEFAULT_POLICY)
    if policy is not None:
        server_policy(policy)  # InputError for a name that there is not
    if options.base_url is not None and options.server_flags:
        what = "flags after -- are for a server that is started here, and --base-url names one that"
        raise SwebenchError(f"{what} runs: drop one of the two")
    if options.base_url is None and not options.is_text and TOOL_FLAG not in options.server_flags:
        raise SwebenchError(
            "the agent's commands are tool calls, which a server gives only with "
            f"`-- {TOOL_FLAG} --tool-call-parser NAME`: add both, or --text for commands as text"
        )
    found = load_instances(options.instances)
    plan = RunPlan(
        source=options.instances,
        instances=select(found, slice_=options.slice, filter_=options.filter),
        out=Path(options.out or f"swebench-{(policy or 'run').replace(':', '-')}-{time_stamp()}"),
        policy=policy,
        workers=None if options.jps is not None else options.workers or 1,
        environment=options.environment
        or ("bubblewrap" if options.instances == SUITE else "docker"),
        **{name: getattr(options, name) for name in _AS_GIVEN.split()},
    )
    document = _played(plan, options)
    if not options.json:
        print(json.dumps(document, indent=1) if options.dry_run else _result_text(document))
    print(json.dumps(document), flush=True)
    return DONE if options.dry_run else _status_of(document)


def _eval(options: argparse.Namespace) -> int:
    """Grade the patches of a run with the official harness.

    `docker` and `podman` are the official evaluation, in the instances' images. `daemon-less` runs
    an instance's own eval script in bubblewrap and has the harness grade the log: for the suite of
    six, and labelled as such in every report.
    """
    from .grading import evaluate

    document = evaluate(
        options.run_dir,
        mode=options.mode,
        dataset=options.dataset,
        repositories=options.repositories,
        workers=options.workers,
        time_limit_s=options.time_limit_s,
        is_redone=options.redo,
        is_dry=options.dry_run,
        say=_tell,
    )
    print(json.dumps(document))
    return DONE


def _report(options: argparse.Namespace) -> int:
    """Compare graded runs: pass rate, completion times, cache; as Markdown, JSON and a figure."""
    from ..commands.report import write_report
    from .report import report

    runs, out = options.run_dirs, options.out
    if out is None:
        out = runs[0] if len(runs) == 1 else f"swebench-report-{time_stamp()}"
    html = html_file(options.html, force=options.force)
    document = report(runs, Path(out), baseline=options.baseline, is_forced=options.force)
    if html is not None:
        write_report(str(out), html)
    page = Path(document["files"]["markdown"]).read_text(encoding="utf-8")
    print(page, file=sys.stderr if options.json else sys.stdout)
    print(json.dumps(document))
    return DONE


def _demo(options: argparse.Namespace) -> int:
    """Run, grade and report the suite of six, with nothing to fetch.

    --model scripted:gold plays the right solutions and scripted:wrong wrong ones: they show that
    the way from a run to its report works, and say nothing about a model. --model demo starts a
    real server with the 135M demo model, which resolves little or nothing. Exit status 0 means
    that every instance was played and graded, resolved or not.
    """
    from .grading import evaluate
    from .report import report
    from .suite import MODEL_CONFIG, SCRIPTED, solution_server

    solution = SCRIPTED.get(options.model)
    if solution is not None and (options.policy or options.base_url):
        raise SwebenchError("--policy and --base-url are for the real server: --model demo")
    instances = select(load_instances(SUITE), slice_=options.slice)
    out = Path(options.out or f"{tempfile.mkdtemp(prefix='agentkv-swebench-')}/run")
    with solution_server(instances, solution) if solution else nullcontext() as server:
        base_url = options.base_url if server is None else server.base_url
        plan = RunPlan(
            source=SUITE,
            instances=instances,
            out=out,
            policy=options.policy or (DEFAULT_POLICY if base_url is None else None),
            base_url=base_url,
            workers=options.workers,
            environment=options.environment or "bubblewrap",
            step_limit=options.step_limit,
            # a model of this size makes no tool calls
            is_text=server is None,
            configs=[] if server else [str(MODEL_CONFIG)],
        )
        document = _played(plan, options)
    _tell(_result_text(document))
    counts = evaluate(out, mode=options.mode, workers=options.workers, say=_tell)
    page = Path(report([out], out)["files"]["markdown"])
    if not options.json:
        print(page.read_text(encoding="utf-8"))
    note = "a 135M model: it resolves little or nothing; the run itself is sound"
    if solution is not None:
        note = "scripted solutions, no model: token counts are words, nothing is cached or pinned"
    print(json.dumps({**counts, "model": options.model, "note": note}))
    return _status_of(document)


def _played(plan: RunPlan, options: argparse.Namespace) -> dict[str, Any]:
    """Run the plan, or describe it with --dry-run; raises SwebenchError if commands cannot run."""
    from .environments import missing
    from .run import run

    problem = missing(plan.environment, is_unsafe_allowed=options.i_know_this_is_unsafe)
    if getattr(options, "dry_run", False):
        return plan.describe(problem)
    if problem is not None:
        raise SwebenchError(problem)
    return run(plan, resume=options.resume, force=options.force)


def _status_of(document: dict[str, Any]) -> int:
    return FAILED if document["ended_early"] or document["errors"] else DONE


def _result_text(document: dict[str, Any]) -> str:
    how = ", ".join(f"{number} {status}" for status, number in document["exit_statuses"].items())
    lines = [f"{document['over']} of {document['instances']} instances over: {how or 'none'}"]
    lines += [f"  {name}: {error}" for name, error in document["errors"].items()]
    if document["ended_early"] is not None:
        lines.append(f"ended early: {document['ended_early']}")
        lines.append("the same command with --resume goes on")
    return "\n".join([*lines, f"in {document['run']}"])


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentkv swebench",
        description="An agent on SWE-bench, its patches graded by the official harness.",
    )
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
    return parser


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("instances").add_argument
    files = f"a .json, .jsonl or .parquet file, or {', '.join(HUB_NAMES)} from the hub"
    what = f"{files}, or {SUITE}: six small ones of ours (default %(default)s)"
    add("--instances", default=SUITE, metavar="SOURCE", help=what)
    add("--filter", metavar="REGEX", help="only those whose id begins with a match")
    add("--slice", metavar="A:B", help="only these of them, as in Python")
    add = parser.add_argument_group("server").add_argument
    default = f"default {DEFAULT_POLICY}; with --base-url that of the server"
    add("--policy", metavar="NAME", help=f"one of {', '.join(known_policies())} ({default})")
    add("--base-url", metavar="URL", help="a running server; its policy is checked")
    add("--model", help="name or folder (default: the demo model, or the server's first)")
    add("--api-key", help="sent as a bearer token; kept nowhere")
    add("server_flags", nargs="*", metavar="-- FLAG", help="flags for the server started here")
    add = parser.add_argument_group("agents").add_argument
    starts = parser.add_mutually_exclusive_group()
    starts.add_argument("--workers", type=_COUNT, metavar="N", help="at once (default 1)")
    starts.add_argument("--jps", type=positive, metavar="R", help="or: R start a second, at random")
    add("--seed", type=int, default=0, help="of the starts with --jps (default %(default)s)")
    _add_environment(add, f"docker; for {SUITE} bubblewrap")
    what = "clones by instance id or OWNER__NAME, for instances without a container"
    add("--repositories", type=Path, metavar="DIR", help=what)
    add("--step-limit", type=_COUNT, metavar="N", help="model calls per instance")
    what = "commands as fenced text, not as tool calls"
    add("--text", dest="is_text", action="store_true", help=what)
    what = "mini-swe-agent configuration over its SWE-bench default: a file, or key.key=value"
    add("--config", dest="configs", action="append", default=[], metavar="SPEC", help=what)
    _add_output(parser, "the run's folder (default swebench-POLICY-TIME)")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, start nothing")


def _add_eval_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_dir", type=Path, help="the --out of `agentkv swebench run`")
    add("--mode", choices=MODES, default="docker", help="default: %(default)s")
    add("--dataset", help="default: the one that the run names")
    what = "clones for daemon-less, of instances that are not of the suite"
    add("--repositories", type=Path, help=what)
    cores = max(1, (os.cpu_count() or 1) * 3 // 4)
    what = "instances graded at once; default: three quarters of the cores"
    add("--workers", type=_COUNT, default=cores, help=what)
    what = "seconds for the tests of one instance; default: %(default)s"
    add("--time-limit-s", type=_COUNT, default=TIME_LIMIT_S, help=what)
    add("--redo", action="store_true", help="grade again what has a verdict")
    add("--dry-run", action="store_true", help="only say what would be graded")


def _add_report_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dirs", type=Path, nargs="+", metavar="RUN_DIR")
    parser.add_argument("--baseline", help="policy that ratios are to; default: fcfs or the first")
    add_kept(parser, "default: the run's own folder; of several, swebench-report-TIME")
    add_html(parser)
    add_json(parser)


def _add_demo_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    models = ("scripted:gold", "scripted:wrong", "demo")
    add("--model", choices=models, default="demo", help="default: %(default)s")
    add("--policy", help=f"of the real server (default: {DEFAULT_POLICY})")
    add("--base-url", metavar="URL", help="a running server with the demo model")
    add("--slice", metavar="A:B", help="only these of the instances")
    add("--workers", type=_COUNT, default=2, help="at once (default %(default)s)")
    add("--step-limit", type=_COUNT, default=6, help="default: %(default)s")
    _add_environment(add, "bubblewrap")
    add("--mode", choices=MODES, default=DAEMON_LESS, help="of grading (default: %(default)s)")
    _add_output(parser, "the run's folder (default: a new temporary one)")


def _add_environment(add: Any, default: str) -> None:
    what = f"where the model's commands run (default {default})"
    add("--environment", choices=KINDS, help=what)
    add("--i-know-this-is-unsafe", action="store_true", help="required by --environment local")


def _add_output(parser: argparse.ArgumentParser, out: str) -> None:
    add_kept(parser, out, resume="go on with the run in --out")
    add_json(parser)


if __name__ == "__main__":
    sys.exit(main())
