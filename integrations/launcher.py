"""`agentkv run`: starts a program in which `agentkv.instrument()` is called, with no code for it.

The program takes this process over, so signals and exit status are its own. Works for `python`,
for `python -m`, and for console scripts, as long as Python reads PYTHONPATH (not with -I or -E).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import startup
from .frameworks import packages

USAGE = """usage: agentkv run [--] COMMAND [ARGUMENT ...]

Start a Python program in which each run of a known framework's agent is a job, with its tools:

  agentkv run -- python my_service.py
  agentkv run -- python -m my_package
  agentkv run -- uvicorn my_service:app"""


def main(argv: Sequence[str]) -> int:
    """Replace this process by the program; 2 for bad usage, 126 and 127 as a shell has them."""
    command = list(argv[1:] if argv[:1] == ["--"] else argv)
    if not command or command[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if command else sys.stderr)
        return 0 if command else 2
    folder = str(Path(startup.__file__).resolve().parent)
    path = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        "AGENTKV_WATCH": ",".join(packages()),
        "PYTHONPATH": os.pathsep.join([folder, path] if path else [folder]),
    }
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        print(f"agentkv run: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126
