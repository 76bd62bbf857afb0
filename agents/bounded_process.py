"""Runs one command to its end or to its time limit, and keeps a bounded part of what it prints.

Knows nothing about sandboxes: it takes an argument list. It never waits for standard input, nor
for children that a command leaves behind holding its output open.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_READ_BYTES = 64 * 1024
_EXIT_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What one command did; `returncode` is None if it ran into the time limit or never ran."""

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
        """Appends a chunk; costs a small multiple of the chunk on average, whatever the limit."""
        num_missing_bytes = self._half_bytes - len(self._head)
        self._head += chunk[:num_missing_bytes]
        self._tail += chunk[num_missing_bytes:]
        num_excess_bytes = max(0, len(self._tail) - self._half_bytes)
        del self._tail[:num_excess_bytes]
        self._num_left_out_bytes += num_excess_bytes

    def text(self) -> str:
        """The stream as text, with a line in the middle that says how much was left out."""
        if not self._num_left_out_bytes:
            return (self._head + self._tail).decode(errors="replace")
        head, tail = (part.decode(errors="replace") for part in (self._head, self._tail))
        return f"{head}\n[... {self._num_left_out_bytes} bytes left out ...]\n{tail}"


def run_bounded(
    argv: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    time_limit_s: float,
    output_limit_bytes: int,
    is_stopped: Callable[[], bool] = lambda: False,
) -> CommandResult:
    """Runs `argv` with standard input empty and both outputs merged; returns within the limit.

    Once `is_stopped`, which is asked many times a second, the time limit counts as reached.
    Whatever is left of its process group is killed in any case. Raises OSError or ValueError where
    the process cannot be started at all.
    """
    started_s = time.monotonic()
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    output = ClippedOutput(output_limit_bytes)
    try:
        with process.stdout as pipe:  # type: ignore[union-attr]  # PIPE was asked for
            deadline_s = started_s + time_limit_s
            has_ended = _read_until_exit(process, pipe, output, deadline_s, is_stopped)
    finally:
        _kill_group(process)
    duration_s = time.monotonic() - started_s
    returncode = _shell_status(process.wait()) if has_ended else None
    return CommandResult(output.text(), returncode, duration_s, timed_out=not has_ended)


def _read_until_exit(
    process: subprocess.Popen[bytes],
    pipe: IO[bytes],
    output: ClippedOutput,
    deadline_s: float,
    is_stopped: Callable[[], bool],
) -> bool:
    """False if the deadline or the stop came first; reads without blocking past them."""
    os.set_blocking(pipe.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while (left_s := deadline_s - time.monotonic()) > 0 and not is_stopped():
            has_exited = process.poll() is not None
            is_readable = bool(selector.select(0 if has_exited else min(left_s, _EXIT_POLL_S)))
            chunk = os.read(pipe.fileno(), _READ_BYTES) if is_readable else None
            if chunk:
                output.add(chunk)
            if has_exited:
                return True
            if chunk == b"":
                return _wait_until(process, deadline_s)
    return False


def _wait_until(process: subprocess.Popen[bytes], deadline_s: float) -> bool:
    try:
        process.wait(max(0.0, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):  # where nobody of the group is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _shell_status(returncode: int) -> int:
    """A death by signal as shells show it, so that it reads alike inside and outside a sandbox."""
    return 128 - returncode if returncode < 0 else returncode
