"""Finds the server of a run that was killed with kill -9, and ends it: it holds the GPU.

A process is known by its id together with its start time, since ids are used again.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

NOTE = "server.pid.json"


def note_server(folder: Path, pid: int | None) -> None:
    """Write down which process is the run's server."""
    if pid is not None:
        note = {"pid": pid, "started_ticks": _started_ticks(pid)}
        (folder / NOTE).write_text(json.dumps(note) + "\n", encoding="utf-8")


def forget_server(folder: Path) -> None:
    """The server has been stopped."""
    (folder / NOTE).unlink(missing_ok=True)


def end_left_over(folder: Path) -> bool:
    """Kill the server that is noted, with its whole group, if it still runs; True if it did."""
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
        pid, started_ticks = int(note["pid"]), note["started_ticks"]
    except (OSError, ValueError, LookupError, TypeError):
        return False
    forget_server(folder)
    if started_ticks is None or _started_ticks(pid) != started_ticks:
        return False
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return True


def _started_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if there is none.

    Source: proc(5), field 22 of /proc/PID/stat; the name before it may hold spaces.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])
