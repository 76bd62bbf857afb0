"""Runs the bash that a model writes: under bubblewrap where it works, else only when approved.

The bash agent uses it. Knows nothing about models or sessions.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from agentkv.agents.sandbox import CLEAN_ENVIRONMENT, bubblewrap_options, find_bubblewrap

READ_BYTES = 64 * 1024
EXIT_POLL_S = 0.05
INSIDE = Path("/project")
# A runaway `cat` into a file stops here, in the 1024-byte units of bash's ulimit.
MAX_FILE_KIB = 64 * 1024
ENVIRONMENT = {
    **CLEAN_ENVIRONMENT,
    "PAGER": "cat",
    "GIT_OPTIONAL_LOCKS": "0",  # `git status` leaves the repository as it was
    "PYTEST_ADDOPTS": "-q -p no:cacheprovider",
}
CANNOT_RUN = 126  # bash's own status for a command that cannot be executed


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of one command; `returncode` is None if it hit the time limit or never ran."""

    output: str
    returncode: int | None
    duration_s: float
    timed_out: bool


class ClippedOutput:
    """The beginning and the end of a byte stream, each at most half of `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self._half_bytes = max(1, limit_bytes // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self._num_left_out_bytes = 0

    def add(self, chunk: bytes) -> None:
        """Append a chunk; the amortized cost is proportional to the chunk, not to the limit."""
        num_missing_bytes = self._half_bytes - len(self._head)
        self._head += chunk[:num_missing_bytes]
        self._tail += chunk[num_missing_bytes:]
        num_excess_bytes = max(0, len(self._tail) - self._half_bytes)
        del self._tail[:num_excess_bytes]
        self._num_left_out_bytes += num_excess_bytes

    def text(self) -> str:
        """Return the stream as text, with a line in the middle that counts the omitted bytes."""
        if not self._num_left_out_bytes:
            return (self._head + self._tail).decode(errors="replace")
        head, tail = (part.decode(errors="replace") for part in (self._head, self._tail))
        return f"{head}\n[... {self._num_left_out_bytes} bytes left out ...]\n{tail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """Runs bash commands in `workspace`, a folder the commands may change.

    bubblewrap: the bwrap executable, or None to run without isolation (see `find_bubblewrap`).
    refusal: called before each command that would run without isolation: None lets it run, a text
        is the reason for refusing and becomes the command's output. Without isolation a child
        that leaves the process group outlives the command.
    """

    workspace: Path
    bubblewrap: str | None
    refusal: Callable[[str], str | None] = lambda command: "no bubblewrap that works here"
    time_limit_s: float = 30.0
    output_limit_bytes: int = 2000

    @property
    def is_isolated(self) -> bool:
        """True if commands run under bubblewrap."""
        return self.bubblewrap is not None

    def run(self, command: str) -> CommandResult:
        """Run one command and return within the time limit; its failure is a result, no error.

        Standard input is empty and both outputs are merged. The rest of the process group is always
        killed, so a child that holds the output open delays nothing.
        """
        if not self.is_isolated and (reason := self.refusal(command)) is not None:
            return CommandResult(f"not run: {reason}", None, 0.0, timed_out=False)
        started_s = time.monotonic()
        try:
            process = subprocess.Popen(
                self._argv(command),
                cwd=self.workspace,
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # a NUL, a lone surrogate, 128 KiB of command
            return CommandResult(f"cannot run: {error}", CANNOT_RUN, 0.0, timed_out=False)
        output = ClippedOutput(self.output_limit_bytes)
        try:
            with process.stdout as pipe:  # type: ignore[union-attr]  # PIPE was asked for
                deadline_s = started_s + self.time_limit_s
                has_ended = self._read_until_exit(process, pipe, output, deadline_s)
        finally:
            with suppress(ProcessLookupError):  # the whole group has exited
                os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
        duration_s = time.monotonic() - started_s
        if not has_ended:
            return CommandResult(output.text(), None, duration_s, timed_out=True)
        # a death by signal is 128 + signal, as bash inside the sandbox reports it
        status = status if status >= 0 else 128 - status
        return CommandResult(output.text(), status, duration_s, timed_out=False)

    def _read_until_exit(
        self,
        process: subprocess.Popen[bytes],
        pipe: IO[bytes],
        output: ClippedOutput,
        deadline_s: float,
    ) -> bool:
        """Read until the process exits; return False if the deadline came first."""
        os.set_blocking(pipe.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while (left_s := deadline_s - time.monotonic()) > 0:
                has_exited = process.poll() is not None
                is_readable = bool(selector.select(0 if has_exited else min(left_s, EXIT_POLL_S)))
                chunk = os.read(pipe.fileno(), READ_BYTES) if is_readable else None
                if chunk:
                    output.add(chunk)
                if has_exited:
                    return True
                if chunk == b"":  # closed, by a process that may go on
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(max(0.0, deadline_s - time.monotonic()))
                    return process.poll() is not None
        return False

    def _argv(self, command: str) -> list[str]:
        limit = f'ulimit -f {MAX_FILE_KIB}; exec bash --noprofile --norc -c "$1"'
        argv = ["bash", "--noprofile", "--norc", "-c", limit, "bash", command]
        if self.bubblewrap is None:
            return argv
        options = bubblewrap_options(self.workspace, INSIDE, ENVIRONMENT)
        return [self.bubblewrap, *options, "--chdir", str(INSIDE), *argv]


def open_sandbox(workspace: Path, *, runs_unasked: bool, output_limit_bytes: int) -> Sandbox:
    """Return a sandbox over bubblewrap if it works here, else one that asks on the terminal.

    `runs_unasked` (an agent's `--yes`) skips the question, and with it the last protection.
    """
    return Sandbox(
        workspace=workspace,
        output_limit_bytes=output_limit_bytes,
        bubblewrap=find_bubblewrap(),
        refusal=(lambda command: None) if runs_unasked else ask_on_terminal,
    )


def ask_on_terminal(command: str) -> str | None:
    """Ask the user to approve one command; refuse if standard input is no terminal."""
    if not sys.stdin.isatty():
        return "no bubblewrap here, and no terminal to ask for approval on (--yes runs it anyway)"
    print(f"\nThe model wants to run, without isolation:\n{command}")
    try:
        answer = input("Run it? [y/N] ")
    except EOFError:
        answer = ""
    return None if answer.strip().lower() in ("y", "yes") else "the user refused this command"
