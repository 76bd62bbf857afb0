"""Runs the bash that a model writes: isolated where bubblewrap works, else only when approved.

Knows nothing about models or sessions. Isolated means no network, no writes outside the workspace
and no sight of the home folder; every command has a time limit and its output is clipped.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from .bounded_process import CommandResult, run_bounded
from .bubblewrap import find_bubblewrap, sandboxed_argv

__all__ = ["CommandResult", "Sandbox"]

# A runaway `cat` into a file stops here, in the 1024-byte units of bash's ulimit.
_MAX_FILE_KIB = 64 * 1024
# What a command finds in the environment; nothing is inherited, so no key of the user's leaks.
_ENVIRONMENT = {
    "PATH": os.pathsep.join([f"{sys.prefix}/bin", "/usr/local/bin", "/usr/bin", "/bin"]),
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_OPTIONAL_LOCKS": "0",  # `git status` leaves the repository as it was
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTEST_ADDOPTS": "-q -p no:cacheprovider",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # plugins of our environment, not of the project's
}
_CANNOT_RUN = 126  # bash's own status for a command that cannot be executed


class Sandbox:
    """Runs bash commands in `workspace`, a folder the commands may change.

    `bubblewrap` is the bwrap program, None if there is none that works (see `find_bubblewrap`).
    `refusal` is asked before each command that would run without isolation: None lets it run, a
    text is the reason why it does not, and becomes the command's output. Without isolation a child
    that leaves the process group outlives the command.
    """

    def __init__(
        self,
        workspace: Path,
        *,
        time_limit_s: float = 30.0,
        output_limit_bytes: int = 2000,
        bubblewrap: str | None,
        refusal: Callable[[str], str | None],
    ) -> None:
        self._workspace = workspace
        self._time_limit_s = time_limit_s
        self._output_limit_bytes = output_limit_bytes
        self._bubblewrap = bubblewrap
        self._refusal = refusal

    @property
    def is_isolated(self) -> bool:
        """True if commands run under bubblewrap."""
        return self._bubblewrap is not None

    def run(self, command: str) -> CommandResult:
        """Runs one command and returns within the time limit; never raises for what it does."""
        if not self.is_isolated and (reason := self._refusal(command)) is not None:
            return CommandResult(f"not run: {reason}", None, 0.0, timed_out=False)
        try:
            return run_bounded(
                self._argv(command),
                cwd=self._workspace,
                environment=_ENVIRONMENT,
                time_limit_s=self._time_limit_s,
                output_limit_bytes=self._output_limit_bytes,
            )
        except (
            OSError,
            ValueError,
        ) as error:  # a NUL, a lone surrogate, 128 KiB of command
            return CommandResult(f"cannot run: {error}", _CANNOT_RUN, 0.0, timed_out=False)

    def _argv(self, command: str) -> list[str]:
        limit = f'ulimit -f {_MAX_FILE_KIB}; exec bash --noprofile --norc -c "$1"'
        argv = ["bash", "--noprofile", "--norc", "-c", limit, "bash", command]
        if self._bubblewrap is None:
            return argv
        return sandboxed_argv(
            self._bubblewrap, argv, workspace=self._workspace, environment=_ENVIRONMENT
        )


def open_sandbox(
    workspace: Path,
    *,
    runs_unasked: bool,
    time_limit_s: float = 30.0,
    output_limit_bytes: int = 2000,
) -> Sandbox:
    """A sandbox with what this machine offers; without bubblewrap it asks on the terminal.

    runs_unasked (an agent's `--yes`) drops the question, and with it the last protection.
    """
    return Sandbox(
        workspace,
        time_limit_s=time_limit_s,
        output_limit_bytes=output_limit_bytes,
        bubblewrap=find_bubblewrap(),
        refusal=_run_unasked if runs_unasked else ask_on_terminal,
    )


def ask_on_terminal(command: str) -> str | None:
    """Asks the user to approve one command; refuses where nobody can answer."""
    if not sys.stdin.isatty():
        return "no bubblewrap here, and no terminal to ask for approval on (--yes runs it anyway)"
    print(f"\nThe model wants to run, without isolation:\n{command}")
    try:
        answer = input("Run it? [y/N] ")
    except EOFError:
        answer = ""
    return None if answer.strip().lower() in ("y", "yes") else "the user refused this command"


def _run_unasked(command: str) -> str | None:
    return None
