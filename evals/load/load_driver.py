"""Plays a workload's jobs on one server, in an event loop of its own.

Ends when all jobs are over, on SIGINT or SIGTERM, when the time is up, when the server is gone, or
when a row cannot be written; what still runs then is cut.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from agentkv.client import feedback

from .conversations import Conversation
from .job_player import JobPlayer, OnTurn
from .load_progress import show_progress
from .load_run import LoadRun
from .outcomes import JobOutcome, TurnOutcome
from .plans import JobPlan, Workload

MAX_IDLE_CONNECTION_S = 2.0
"""The server closes idle connections too (vLLM after 5 s), and a request sent just then fails."""
MAX_IDLE_CONNECTIONS = 20
"""The SDK's pool asks each idle connection's socket at every request, 40 microseconds apiece."""
_FEEDBACK_S = 5.0
_ALIVE_TIMEOUT_S = 5.0

MakeConversation = Callable[[JobPlan, str], Conversation]
"""Of a job and the id of the run."""


@dataclass(frozen=True, slots=True)
class Driven:
    """What became of the jobs; `stopped_because` is None if all of them were played."""

    jobs: tuple[JobOutcome, ...]
    stopped_because: str | None
    max_lag_s: float
    reports_cached_tokens: bool


class LoadDriver:
    """One run. `run_id` is in every job's id on the server, so that runs do not meet there."""

    def __init__(
        self,
        workload: Workload,
        conversation: MakeConversation,
        *,
        root_url: str,
        api_key: str | None,
        request_timeout_s: float,
        limit_s: float | None,
        on_turn: OnTurn,
    ) -> None:
        self.run_id = uuid.uuid4().hex[:8]
        self._workload = workload
        self._conversation = conversation
        self._root_url = root_url
        self._api_key = api_key
        self._request_timeout_s = request_timeout_s
        self._limit_s = limit_s
        self._keep_row = on_turn

    def drive(self, label: str) -> Driven:
        """Blocks until the run is over and the server has heard of its end."""
        driven = asyncio.run(self._drive(label))
        feedback.flush(_FEEDBACK_S)
        return driven

    async def _drive(self, label: str) -> Driven:
        def clock() -> float:
            return time.monotonic() - start_s

        def on_turn(job: JobOutcome, turn: TurnOutcome, is_last: bool) -> None:
            try:
                self._keep_row(job, turn, is_last)
            except OSError as error:
                run.stop(f"a row could not be written: {error}")

        async with self._client() as client:
            start_s = time.monotonic()
            player = JobPlayer(
                client,
                lambda job: self._conversation(job, self.run_id),
                run_id=self.run_id,
                clock=clock,
                on_turn=on_turn,
            )
            run = LoadRun(self._workload, player.play, clock=clock, is_alive=self._is_alive)
            progress = asyncio.ensure_future(show_progress(run.state, label, clock))
            with _stopped_by_signals(run.stop), self._stopped_by_time(run.stop):
                jobs = await run.run()
            progress.cancel()
            await asyncio.wait({progress})
        return Driven(jobs, run.stopped_because, run.state.max_lag_s, player.has_seen_cached_tokens)

    def _client(self) -> Any:
        """No retries: a turn that fails is a result. As many connections as there are jobs."""
        import openai  # slow to import, and errors in the flags come first

        limits = httpx.Limits(
            max_connections=None,
            max_keepalive_connections=MAX_IDLE_CONNECTIONS,
            keepalive_expiry=MAX_IDLE_CONNECTION_S,
        )
        return openai.AsyncOpenAI(
            base_url=f"{self._root_url}/v1",
            api_key=self._api_key or "none",
            max_retries=0,
            timeout=self._request_timeout_s,
            http_client=openai.DefaultAsyncHttpxClient(limits=limits),
        )

    async def _is_alive(self) -> bool:
        """Does anything listen there still? An overloaded server does, whatever its answers."""
        url = urlsplit(self._root_url)
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            opening = asyncio.open_connection(url.hostname, port)
            _, writer = await asyncio.wait_for(opening, _ALIVE_TIMEOUT_S)
        except OSError:  # a time-out is one, too
            return False
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True

    @contextmanager
    def _stopped_by_time(self, stop: Callable[[str], None]) -> Iterator[None]:
        if self._limit_s is None:
            yield
            return
        reason = f"{self._limit_s:g} s were over (--limit-s)"
        timer = asyncio.get_running_loop().call_later(self._limit_s, stop, reason)
        yield
        timer.cancel()


@contextmanager
def _stopped_by_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """SIGINT and SIGTERM stop the run once; a second one does what it did before."""
    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore(number: signal.Signals) -> None:
        loop.remove_signal_handler(number)
        signal.signal(number, before[number])

    def stop_once(number: signal.Signals) -> None:
        restore(number)
        stop(f"interrupted ({number.name})")

    for number in before:
        loop.add_signal_handler(number, stop_once, number)
    try:
        yield
    finally:
        for number in before:
            restore(number)
