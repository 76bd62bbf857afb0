"""The server that a run's agents talk to: one that is there, or one of our own with the policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkv.client.server import forget_servers
from agentkv.server.process import ServerProcess

from ..policies import STOCK_POLICIES, check_policy, server_policy
from ..server import ServerUnderTest
from .left_over_server import end_left_over, forget_server, note_server
from .run_plan import RunPlan

READY_TIMEOUT_S = 3600.0
"""A 70B model is read from a network disk in this time."""
LOG_NAME = "server.log"
_ALIVE_TIMEOUT_S = 5.0
_LOG_LINES = 5


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers; `info` is the plugin's, None where there is none.

    gone: why it no longer answers, None while it does.
    counters: the plugin's totals and the sums of `/metrics`, empty where there are none.
    """

    base_url: str
    model: str
    policy: str
    info: Mapping[str, Any] | None
    gone: Callable[[], str | None]
    counters: Callable[[], dict[str, Any]]


@contextmanager
def serving(plan: RunPlan) -> Iterator[Served]:
    """The plan's server, checked for its policy; one of our own is gone afterwards.

    Raises ServerStartError, ServerError or PolicyError.
    """
    forget_servers()  # another one may have been at this address
    if plan.base_url is not None:
        with ServerUnderTest(plan.base_url, api_key=plan.api_key) as server:
            yield _served(plan, server, plan.model, server.silence)
        return
    assert plan.policy is not None, "a server of our own runs a policy"
    policy = server_policy(plan.policy)
    process = ServerProcess(
        plan.model,
        policy=policy.scheduling_policy,
        args=(*plan.server_flags, *policy.flags()),
        log_path=plan.out / LOG_NAME,
        ready_timeout_s=READY_TIMEOUT_S,
    )
    # its first model is the one it was started with, whatever name it serves it under
    with _running(process, plan.out), ServerUnderTest(process.base_url) as server:
        yield _served(plan, server, None, lambda: _end_of(process))


@contextmanager
def _running(process: ServerProcess, out: Path) -> Iterator[None]:
    """The server, ready; noted in the run's folder while it runs, should we be killed."""
    end_left_over(out)
    try:
        process.start()
        note_server(out, process.pid)
        process.wait_until_ready()
        yield
    finally:
        process.stop()
        forget_server(out)


def _served(
    plan: RunPlan, server: ServerUnderTest, model: str | None, gone: Callable[[], str | None]
) -> Served:
    facts = server.facts(model)
    running = facts.policy or STOCK_POLICIES[0]
    if plan.policy is not None:
        check_policy(server_policy(plan.policy), facts.info)
    return Served(
        base_url=f"{server.root_url}/v1",
        model=facts.model,
        policy=plan.policy or running,
        info=facts.info,
        gone=gone,
        counters=server.counters_or_error,
    )


def _end_of(process: ServerProcess) -> str | None:
    if process.is_alive:
        return None
    tail = process.log_tail(_LOG_LINES)
    return f"the server ended; the end of its log, {process.log_path}:\n{tail}"
