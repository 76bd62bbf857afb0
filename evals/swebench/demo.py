"""`agentkv swebench demo`: run, grading and report on the tiny suite, with nothing to fetch.

--model scripted:gold plays the right solutions and scripted:wrong wrong ones: they show that the
way from a run to its report works, and say nothing about a model. --model demo starts a real
server with the 135M demo model, which resolves little or nothing. Exit status 0 means that every
instance was played and graded, whatever is resolved.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from agentkv.errors import AgentKVError

from ..options import whole_number
from . import run_command
from .demo_prompt import demo_configs
from .errors import HarnessError, SwebenchError
from .eval_command import DAEMON_LESS, MODES, evaluate
from .instances import SUITE, load_instances, select
from .report_command import MARKDOWN_FILE, report
from .scripted_server import MODEL_PREFIX, SOLUTIONS, SolutionServer

DEMO_MODEL = "demo"
MODELS = (*(f"{MODEL_PREFIX}{solution}" for solution in SOLUTIONS), DEMO_MODEL)
_STEP_LIMIT = 6
_WORKERS = 2


def main(argv: Sequence[str] | None = None) -> int:
    """0: all instances were played and graded; 1: some were not; 2: bad usage."""
    options = _parser().parse_args(argv)
    try:
        out = options.out or Path(tempfile.mkdtemp(prefix="agentkv-swebench-")) / "run"
        status = _play(options, out)
        if status == run_command.BAD_USAGE:
            return status
        counts = evaluate(out, mode=options.mode, workers=_WORKERS, say=_say)
        report([out])
    except KeyboardInterrupt:
        _say("interrupted; what was played stays, --resume goes on")
        return run_command.FAILED
    except (AgentKVError, OSError) as error:
        _say(f"agentkv swebench demo: {error}")
        has_failed = isinstance(error, (HarnessError, OSError))
        return run_command.FAILED if has_failed else run_command.BAD_USAGE
    if not options.json:
        print((out / MARKDOWN_FILE).read_text(encoding="utf-8"))
    print(json.dumps({**counts, "model": options.model, "note": _note(options.model)}))
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentkv swebench demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", choices=MODELS, default=DEMO_MODEL, help="default: %(default)s")
    add("--policy", help="of the real server (default: that of `agentkv swebench run`)")
    add("--base-url", metavar="URL", help="a server with the demo model that runs already")
    add("--slice", metavar="A:B", help="only these of the instances")
    add("--workers", type=whole_number(1), default=_WORKERS, help="at once (default %(default)s)")
    add("--step-limit", type=whole_number(1), default=_STEP_LIMIT, help="default: %(default)s")
    add("--out", type=Path, metavar="DIR", help="the run's folder (default: a new temporary one)")
    add("--environment", help="default: bubblewrap")
    add("--mode", choices=MODES, default=DAEMON_LESS, help="of grading (default: %(default)s)")
    add("--i-know-this-is-unsafe", action="store_true", help="what --environment local asks for")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--resume", action="store_true", help="go on with the run in --out")
    kept.add_argument("--force", action="store_true", help="throw the run in --out away first")
    add("--json", action="store_true", help="print the JSON document alone")
    return parser


def _play(options: argparse.Namespace, out: Path) -> int:
    """Exit status of `agentkv swebench run`, whose own last line goes to standard error."""
    if not options.model.startswith(MODEL_PREFIX):
        return _run([*_shared_flags(options, out), *_demo_model_flags(options)])
    if options.policy or options.base_url:
        raise SwebenchError("--policy and --base-url are for the real server: --model demo")
    name = options.model.removeprefix(MODEL_PREFIX)
    solution = next(one for one in SOLUTIONS if one == name)
    instances = select(load_instances(SUITE), slice_=options.slice)
    with SolutionServer(instances, solution) as server:
        return _run([*_shared_flags(options, out), "--base-url", server.base_url])


def _shared_flags(options: argparse.Namespace, out: Path) -> list[str]:
    flags = ["--instances", SUITE, "--out", str(out), "--workers", str(options.workers)]
    flags += ["--step-limit", str(options.step_limit)]
    for name in ("slice", "environment"):
        if getattr(options, name):
            flags += [f"--{name}", getattr(options, name)]
    for name in ("resume", "force", "i_know_this_is_unsafe"):
        if getattr(options, name):
            flags.append(f"--{name.replace('_', '-')}")
    return flags


def _demo_model_flags(options: argparse.Namespace) -> list[str]:
    """Text mode: a model of this size makes no tool calls."""
    flags = ["--text", *(part for spec in demo_configs() for part in ("--config", spec))]
    for name in ("policy", "base_url"):
        if getattr(options, name):
            flags += [f"--{name.replace('_', '-')}", getattr(options, name)]
    return flags


def _run(flags: Sequence[str]) -> int:
    with redirect_stdout(sys.stderr):
        return run_command.main(flags)


def _note(model: str) -> str:
    if model == DEMO_MODEL:
        return "a 135M model: it resolves little or nothing, and that is no fault of the way here"
    return "scripted solutions, no model: token counts are words, nothing is cached or pinned"


def _say(text: str) -> None:
    print(text, file=sys.stderr)
