"""`agentkv run`: starts a program in which `agentkv.instrument()` is called, with no code for it.

The program takes this process over, so signals and exit status are its own. Works for `python`,
for `python -m`, and for console scripts, as long as Python reads PYTHONPATH (not with -I or -E).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from . import startup
from .frameworks import packages

USAGE = """usage: agentkv run [--job[=ID]] [--] COMMAND [ARGUMENT ...]

Start a Python program in which each run of a known framework's agent is a job, with its tools:

  agentkv run -- python my_service.py
  agentkv run -- python -m my_package
  agentkv run -- uvicorn my_service:app

With --job the whole program is one job, released at its end: for a loop written by hand. Every call
of a model in it is a turn."""


def main(argv: Sequence[str]) -> int:
    """Replace this process by the program; 2 for bad usage, 126 and 127 as a shell has them."""
    flags = list(takewhile(lambda word: word.startswith("-") and word != "--", argv))
    command = list(argv[len(flags) :])
    command = command[1:] if command[:1] == ["--"] else command
    wants_help = bool({"-h", "--help"} & set(flags))
    unknown = [flag for flag in flags if flag.partition("=")[0] != "--job"]
    if wants_help or unknown or not command:
        if not wants_help:
            seen = f"unknown option {unknown[0]}" if unknown else "no command given"
            print(f"agentkv run: {seen}", file=sys.stderr)
        print(USAGE, file=sys.stdout if wants_help else sys.stderr)
        return 0 if wants_help else 2
    folder = str(Path(startup.__file__).resolve().parent)
    path = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        "AGENTKV_WATCH": ",".join(packages()),
        "PYTHONPATH": os.pathsep.join([folder, path] if path else [folder]),
    }
    if flags:
        environment["AGENTKV_JOB"] = flags[-1].partition("=")[2]
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        print(f"agentkv run: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126
