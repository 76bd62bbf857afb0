"""`agentkv run`: starts a program in which `agentkv.instrument()` is called, with no code for it.

The program takes this process over, so signals and exit status are its own. Works for `python`,
for `python -m`, and for console scripts, as long as Python reads PYTHONPATH (not with -I or -E).
Coding agents are started by `coding_agents`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from agentkv import coding_agents
from agentkv.coding_agents import AGENTS

from . import startup
from .frameworks import packages

USAGE = """usage: agentkv run AGENT URL [--model NAME] [--print] [-- ARGUMENT ...]
       agentkv run [--job[=ID]] [--] COMMAND [ARGUMENT ...]

Start a coding agent with the settings that point it at a server, or print them:

  agentkv run claude http://127.0.0.1:8000
  agentkv run codex http://127.0.0.1:8000 --print

Start a Python program in which each run of a known framework's agent is a job, with its tools:

  agentkv run -- python my_service.py
  agentkv run -- python -m my_package
  agentkv run -- uvicorn my_service:app

With --job the whole program is one job, released at its end: for a loop written by hand. Every call
of a model in it is a turn."""

_PYTHON = re.compile(r"(python|pypy)[\d.]*(\.exe)?$")


def main(argv: Sequence[str]) -> int:
    """Replace this process by the program; 2 for bad usage, 126 and 127 as a shell has them."""
    if argv and (argv[0] in AGENTS or (len(argv) == 2 and "://" in argv[1])):
        return coding_agents.main(argv)
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
    if not _is_python(command[0]):
        what = f"{command[0]} is no Python program: only Python programs that it starts have jobs"
        print(f"agentkv run: {what}", file=sys.stderr)
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


def _is_python(program: str) -> bool:
    """Return whether a command is Python or a script for it; True for what cannot be found."""
    path = shutil.which(program)
    if path is None or _PYTHON.search(Path(path).name):
        return True
    with Path(path).open("rb") as file:
        start = file.read(300)  # an installer with a long path writes #!/bin/sh, then the path
    return start.startswith(b"#!") and b"python" in start
