"""The `agentkv` command: a table of subcommands, each module imported only when it is called.

Every such module has `main(argv) -> exit status` and parses its own flags. Knows nothing of what
the commands do, so that `agentkv --help` needs no extra and takes a blink.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout

from agentkv.errors import AgentKVError, how_to_install, not_among, reason_of
from agentkv.visible import VisibleStream

COMMANDS = {
    "serve": ("integrations.vllm.serve", "vllm", "start a vLLM server with one of our policies"),
    "run": (
        "integrations.launcher",
        "",
        "start a coding agent on a server, or a Python program whose agents' runs are jobs",
    ),
    "doctor": ("integrations.vllm.doctor", "", "check the installation and a server"),
    "verify-pin": ("evals.commands.verify_pin", "bench", "check that pins last and end"),
    "record": ("evals.commands.record", "", "show the jobs of a server or a run"),
    "explain": ("evals.commands.explain", "", "say why turns of a job missed the cache"),
    "bench": ("evals.commands.bench", "bench", "play agent jobs on servers, and measure them"),
    "simulate": ("evals.simulator.simulate", "bench,vllm", "compare policies without a server"),
    "replay": ("evals.commands.replay", "bench,vllm", "play a server's own log under stock"),
    "plot": ("evals.commands.plot", "bench", "draw the rows of bench and simulate"),
    "swebench": (
        "evals.swebench.command",
        "bench,swebench",
        "run an agent on SWE-bench, evaluate its patches, report",
    ),
}
"""Subcommand: (module below agentkv, the extras that it needs, help line)."""
PAINTERS = frozenset({"serve", "run", "swebench"})
"""Commands that run programs of others, or draw: what they print reaches the terminal as it is."""


GROUPS = {"serve": "serve", "record": "watch", "bench": "measure"}
"""The first command of each group in `agentkv --help`, with the group's name."""


def usage() -> str:
    lines = ["usage: agentkv COMMAND [options]"]
    for name, (_, _, about) in COMMANDS.items():
        lines += ["", f"{GROUPS[name]}:"] if name in GROUPS else []
        lines.append(f"  {name:12} {about}")
    return "\n".join([*lines, "", "COMMAND --help: more"])


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; 0 done, 1 checked and failed or interrupted, 2 bad usage."""
    argv = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, io.TextIOWrapper):
        # names of commands and jobs may have characters that the terminal's encoding lacks
        sys.stdout.reconfigure(errors="replace")
    try:
        status = _run(argv)
        if sys.stdout is not None:  # None: started with `>&-`
            sys.stdout.flush()
    except BrokenPipeError:
        # the reader of our output (`head`) has closed it: discard the rest of the buffer
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print(f"agentkv {argv[0]}: interrupted", file=sys.stderr)
        return 1
    except (AgentKVError, OSError) as error:
        # a command that has begun keeps what it has and says so itself
        file = getattr(error, "filename", None)
        seen = str(error) if file is None else f"{file}: {reason_of(error)}"
        print(f"agentkv {argv[0]}: {seen.removeprefix(f'{argv[0]}: ')}", file=sys.stderr)
        return 2
    return status


def _run(argv: list[str]) -> int:
    if argv and argv[0] in ("-h", "--help"):
        print(usage())
        return 0
    if argv and argv[0] == "--version":
        from agentkv import __version__

        print(f"agentkv {__version__}")
        return 0
    if not argv or argv[0] not in COMMANDS:
        seen = f"unknown command: {not_among(argv[0], COMMANDS)}" if argv else "no command given"
        print(f"agentkv: {seen}" if argv else f"agentkv: {seen}\n{usage()}", file=sys.stderr)
        return 2
    name, extras, _ = COMMANDS[argv[0]]
    try:
        command = importlib.import_module(f"agentkv.{name}")
        if argv[0] in PAINTERS or None in (sys.stdout, sys.stderr):
            return int(command.main(argv[1:]))
        with redirect_stdout(VisibleStream(sys.stdout)), redirect_stderr(VisibleStream(sys.stderr)):
            return int(command.main(argv[1:]))
    except ModuleNotFoundError as error:
        seen = f"the package {error.name!r} is missing: {how_to_install(extras)}"
        print(f"agentkv {argv[0]}: {seen}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
