"""`agentkv swebench run`: mini-swe-agent on SWE-bench instances, through our session and policy.

Every instance is one agent job. Patches, trajectories and times go to --out as instances end, so
that Ctrl-C, a crash or a dead server lose nothing that was finished: --resume goes on. Without
--base-url a server with the --policy is started; flags after `--` go to it. The last line on
standard output is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentkv.errors import AgentKVError

from ..options import positive, whole_number
from ..policies import policy_names, server_policy
from ..rows import time_stamp
from .agent_logs import quiet_imports
from .dry_run import describe, plan_text
from .environments import KINDS, missing
from .errors import SwebenchError
from .instances import HUB_NAMES, SUITE, load_instances, select
from .run import run
from .run_plan import RunPlan, agent_config

DONE, FAILED, BAD_USAGE = 0, 1, 2
DEFAULT_POLICY = "continuum"
TOOL_FLAG = "--enable-auto-tool-choice"


def main(argv: Sequence[str] | None = None) -> int:
    """0: all instances are over without an error; 1: some are not; 2: bad usage."""
    options = _parser().parse_args(argv)
    quiet_imports()
    try:
        plan = plan_of(options)
        agent_config(plan)
        problem = missing(plan.environment, is_unsafe_allowed=options.i_know_this_is_unsafe)
        if options.dry_run:
            return _tell_plan(plan, problem, is_json=options.json)
        if problem is not None:
            raise SwebenchError(problem)
        document = run(plan, resume=options.resume, force=options.force)
    except (AgentKVError, OSError, ValueError) as error:
        print(f"agentkv swebench run: {error}", file=sys.stderr)
        return BAD_USAGE
    if not options.json:
        print(text_of(document))
    print(json.dumps(document), flush=True)
    is_done = document["ended_early"] is None and not document["errors"]
    return DONE if is_done else FAILED


def text_of(document: dict[str, Any]) -> str:
    """The result for a person."""
    how = ", ".join(f"{number} {status}" for status, number in document["exit_statuses"].items())
    lines = [f"{document['over']} of {document['instances']} instances over: {how or 'none'}"]
    lines += [f"  {name}: {error}" for name, error in document["errors"].items()]
    if document["ended_early"] is not None:
        lines.append(f"ended early: {document['ended_early']}")
        lines.append("the same command with --resume goes on")
    lines.append(f"in {document['run']}")
    return "\n".join(lines)


def plan_of(options: argparse.Namespace) -> RunPlan:
    """The flags as a plan. Raises SwebenchError or PolicyError for what cannot be."""
    if options.policy is not None:
        server_policy(options.policy)
    if options.base_url is not None and options.server_flags:
        raise SwebenchError(
            "flags after -- are for a server that is started here, and --base-url names one that "
            "runs: drop one of the two"
        )
    if options.base_url is None and not options.text and TOOL_FLAG not in options.server_flags:
        raise SwebenchError(
            "the agent's commands are tool calls, which a server gives only with "
            f"`-- {TOOL_FLAG} --tool-call-parser NAME`: add both, or --text for commands as text"
        )
    is_suite = options.instances == SUITE
    policy = options.policy
    if policy is None and options.base_url is None:
        policy = DEFAULT_POLICY
    instances = select(
        load_instances(options.instances), slice_=options.slice, filter_=options.filter
    )
    stamp = time_stamp()
    return RunPlan(
        source=options.instances,
        instances=tuple(instances),
        out=Path(options.out or f"swebench-{(policy or 'run').replace(':', '-')}-{stamp}"),
        policy=policy,
        model=options.model,
        base_url=options.base_url,
        api_key=options.api_key,
        server_flags=tuple(options.server_flags),
        num_workers=None if options.jps is not None else options.workers or 1,
        jps=options.jps,
        seed=options.seed,
        environment=options.environment or ("bubblewrap" if is_suite else "docker"),
        repositories=options.repositories,
        step_limit=options.step_limit,
        is_text=options.text,
        configs=tuple(options.config or ()),
    )


def _tell_plan(plan: RunPlan, problem: str | None, *, is_json: bool) -> int:
    described = describe(plan, problem)
    if not is_json:
        print(plan_text(plan, described))
    print(json.dumps(described), flush=True)
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentkv swebench run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_instances(parser)
    _add_server(parser)
    _add_agents(parser)
    add = parser.add_argument_group("output").add_argument
    add("--out", metavar="DIR", help="the run's folder (default swebench-POLICY-TIME)")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--resume", action="store_true", help="go on with the run in --out")
    kept.add_argument("--force", action="store_true", help="throw the run in --out away first")
    add("--dry-run", action="store_true", help="print the plan, start nothing")
    add("--json", action="store_true", help="print the JSON document alone")
    return parser


def _add_instances(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("instances").add_argument
    add(
        "--instances",
        default=SUITE,
        metavar="SOURCE",
        help=f"a .json, .jsonl or .parquet file, {', '.join(HUB_NAMES)} from the hub, or {SUITE}: "
        "six small ones of ours (default %(default)s)",
    )
    add("--filter", metavar="REGEX", help="only those whose id begins with a match")
    add("--slice", metavar="A:B", help="only these of them, as in Python")


def _add_server(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("server").add_argument
    add(
        "--policy",
        metavar="NAME",
        help=f"of {', '.join(policy_names())} (default {DEFAULT_POLICY}; with --base-url what "
        "the server runs)",
    )
    add("--base-url", metavar="URL", help="a server that runs; its policy is checked")
    add("--model", help="name or folder (default: the demo model, or the server's first)")
    add("--api-key", help="sent as a bearer token; kept nowhere")
    add("server_flags", nargs="*", metavar="-- FLAG", help="flags for the server started here")


def _add_agents(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("agents").add_argument
    starts = parser.add_mutually_exclusive_group()
    starts.add_argument("--workers", type=whole_number(1), metavar="N", help="at once (default 1)")
    starts.add_argument("--jps", type=positive, metavar="R", help="or: R start a second, at random")
    add("--seed", type=int, default=0, help="of the starts with --jps (default %(default)s)")
    add(
        "--environment",
        choices=KINDS,
        help=f"where the model's commands run (default docker; for {SUITE} bubblewrap)",
    )
    add(
        "--repositories",
        type=Path,
        metavar="DIR",
        help="clones by instance id or OWNER__NAME, for instances without a container",
    )
    add("--step-limit", type=whole_number(1), metavar="N", help="calls of the model an instance")
    add("--text", action="store_true", help="commands as fenced text, not as tool calls")
    add(
        "--config",
        action="append",
        metavar="SPEC",
        help="mini-swe-agent configuration over its SWE-bench default: a file, or key.key=value",
    )
    add("--i-know-this-is-unsafe", action="store_true", help="what --environment local asks for")


if __name__ == "__main__":
    sys.exit(main())
