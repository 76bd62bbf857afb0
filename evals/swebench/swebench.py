"""`agentkv swebench`: an agent on SWE-bench through our session, graded by the official harness.

Each subcommand is a module of its own, imported only when it is called.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

BAD_USAGE = 2
SUBCOMMANDS = {
    "run": ("run_command", "let mini-swe-agent work on instances, and keep its patches"),
    "eval": ("eval_command", "grade the patches of a run with the harness"),
    "report": ("report_command", "pass rate, completion times and cache behaviour of runs"),
    "demo": ("demo", "all three on six small instances, without a network"),
}
"""Subcommand: (module with `main(argv) -> exit status`, what it does)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; 0 done, 1 done in part, 2 bad usage."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if not arguments or arguments[0] not in SUBCOMMANDS:
        seen = f"unknown subcommand {arguments[0]!r}" if arguments else "no subcommand given"
        print(f"agentkv swebench: {seen}\n{_usage()}", file=sys.stderr)
        return BAD_USAGE
    name = SUBCOMMANDS[arguments[0]][0]
    try:
        module = importlib.import_module(f".{name}", __package__)
    except ModuleNotFoundError as error:
        print(
            f"agentkv swebench {arguments[0]}: the package {error.name!r} is missing: "
            "run `pip install 'agentkv-serving[bench,swebench]'`",
            file=sys.stderr,
        )
        return 1
    status: int = module.main(arguments[1:])
    return status


def _usage() -> str:
    lines = [f"  {name:8} {what}" for name, (_, what) in SUBCOMMANDS.items()]
    head = "usage: agentkv swebench SUBCOMMAND [options]"
    return "\n".join([head, "", *lines, "", "SUBCOMMAND --help: more"])


if __name__ == "__main__":
    sys.exit(main())
