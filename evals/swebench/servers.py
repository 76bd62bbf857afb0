"""The server that a run's agents talk to: a given one, or one started with the run's policy.

`run` calls `serving`. Also ends the server of an earlier run that was killed with kill -9, as it
holds the GPU, and subtracts the plugin's totals before the run from those after it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkv.client.server import forget_servers
from agentkv.policies.names import STOCK_POLICIES, server_policy
from agentkv.server.process import ServerProcess

from ..server import ServerUnderTest
from .folder import SERVER_LOG, SERVER_NOTE
from .plan import RunPlan

READY_TIMEOUT_S = 3600.0
"""A 70B model is read from a network disk in this time."""
_LOG_LINES = 5


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers; `info` is the plugin's, None without the plugin.

    gone: returns why the server no longer answers, or None.
    totals: returns the plugin's stats, or None without the plugin.
    """

    base_url: str
    model: str
    policy: str
    info: Mapping[str, Any] | None
    gone: Callable[[], str | None]
    totals: Callable[[], Mapping[str, Any] | None]


@contextmanager
def serving(plan: RunPlan) -> Iterator[Served]:
    """Yield the plan's server, or one started for it, after checking its policy.

    A server started here logs to the run's folder and is stopped on exit. Raises ServerStartError,
    AgentKVServerError or InputError.
    """
    forget_servers()  # another server may have been at this address
    if plan.base_url is not None:
        with ServerUnderTest(plan.base_url, api_key=plan.api_key) as server:
            yield _served(server, plan.policy, plan.model, server.silence)
        return
    chosen = server_policy(str(plan.policy))
    process = ServerProcess(
        plan.model,
        policy=chosen.scheduling_policy,
        args=(*plan.server_flags, *chosen.flags()),
        log_path=plan.out / SERVER_LOG,
        ready_timeout_s=READY_TIMEOUT_S,
    )

    def gone() -> str | None:
        if process.is_alive:
            return None
        tail = process.log_tail(_LOG_LINES)
        return f"the server ended; the end of its log, {process.log_path}:\n{tail}"

    end_left_over(plan.out)
    try:
        process.start()
        note_server(plan.out, process.pid)
        process.wait_until_ready()
        # no model: its first one is the one it was started with, under any served name
        with ServerUnderTest(process.base_url) as server:
            yield _served(server, plan.policy, None, gone)
    finally:
        process.stop()
        (plan.out / SERVER_NOTE).unlink(missing_ok=True)


def _served(
    server: ServerUnderTest, policy: str | None, model: str | None, gone: Callable[[], str | None]
) -> Served:
    facts = server.facts(model)
    if policy is not None:
        server_policy(policy).check_server(facts.info)
    return Served(
        base_url=f"{server.root_url}/v1",
        model=facts.model,
        policy=policy or facts.policy or STOCK_POLICIES[0],
        info=facts.info,
        gone=gone,
        totals=lambda: server.counters().get("agentkv"),
    )


def added_totals(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Any:
    """Subtract the plugin's totals before a run from those after it; None without a plugin.

    A total that has fallen belongs to a server that was restarted, and counts from zero.
    """
    if after is None:
        return None
    totals = {name: value for name, value in after.items() if name.endswith("_total")}
    added = {name: _combined(value, (before or {}).get(name), -1) for name, value in totals.items()}
    parts = [part.values() if isinstance(part, Mapping) else (part,) for part in added.values()]
    return totals if any(number < 0 for part in parts for number in part) else added


def summed_totals(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> Any:
    """Add up the totals of two sessions of a run; None if neither is known."""
    if first is None or second is None:
        return first if second is None else second
    return _combined(first, second, 1)


def _combined(value: Any, other: Any, sign: int) -> Any:
    """Add or subtract numbers, or mappings of numbers by label."""
    if isinstance(value, Mapping) or isinstance(other, Mapping):
        mine, theirs = value or {}, other or {}
        names = dict.fromkeys([*mine, *theirs])
        return {name: _combined(mine.get(name, 0), theirs.get(name), sign) for name in names}
    return value + sign * (other or 0)


def note_server(folder: Path, pid: int | None) -> None:
    """Write down which process is the run's server: its id and its start time, as ids recur."""
    (folder / SERVER_NOTE).write_text(f"{pid} {_started_ticks(pid)}", encoding="utf-8")


def end_left_over(folder: Path) -> bool:
    """Kill the noted server with its process group if it still runs; return whether it did."""
    path = folder / SERVER_NOTE
    if not path.exists():
        return False
    pid, _, ticks = path.read_text(encoding="utf-8").partition(" ")
    path.unlink()
    is_ours = pid.isdecimal() and _started_ticks(pid) == ticks
    if is_ours:
        with suppress(ProcessLookupError):
            os.killpg(int(pid), signal.SIGKILL)
    return is_ours


def _started_ticks(pid: int | str | None) -> str | None:
    """Return when the process started, in clock ticks since boot; None if there is none.

    Source: proc(5), field 22 of /proc/PID/stat; the name before it may contain spaces.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]
