"""Keeps a job's turns on the data-parallel engine that has its KV.

vLLM's balancer chooses an engine for each request by load: the wrapped method is
DPLBAsyncMPClient.get_core_engine_for_request (vllm/v1/engine/core_client.py, 0.31 to 0.33). Under
our policies a job's first turn still goes where stock sends it, and later ones to the same engine;
a sub-agent starts on its parent's engine if nobody waits there. Requests without a job, with
`X-data-parallel-rank` or under other policies are stock's.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import mmap
import multiprocessing
import os
import struct
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..engine.scheduler import tags_of
from ..engine.seam import guarded
from ..server_policy import policy_of
from ..telemetry.prometheus import EngineReport, engine_reports

REPORT_LIFE_S = 30.0
"""Age up to which an engine's report counts; without one, a job stays where it is."""


class EngineTable:
    """The engine of each job's last turn, in memory that the API servers of a server share.

    A hash table of a fixed size: of the few slots where a job may stand, a new job takes the one
    not used for longest. Processes write without a lock; a job whose slot two of them wrote at
    once may go to the wrong engine, which costs it one prefill.
    """

    NUM_SLOTS = 1 << 16
    NUM_PROBES = 8
    _SLOT = struct.Struct("<QIi")  # hash of the job's key, second of its last turn, engine + 1

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    @classmethod
    def of_this_process(cls) -> EngineTable:
        return cls(mmap.mmap(-1, cls.NUM_SLOTS * cls._SLOT.size))

    @classmethod
    def of_server(cls) -> EngineTable:
        """Share the table with the other API servers, in a file only this user can read.

        Its name is a hash of the secret that Python gives all processes of one server.
        """
        secret = bytes(multiprocessing.current_process().authkey)
        name = hashlib.blake2b(b"engines", key=secret[:64], digest_size=16).hexdigest()
        path = Path(tempfile.gettempdir()) / f"agentkv-engines-{name}"
        num_bytes = cls.NUM_SLOTS * cls._SLOT.size
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(file, num_bytes)
            memory = mmap.mmap(file, num_bytes)
        finally:
            os.close(file)
        atexit.register(_remove, path)
        return cls(memory)

    def get(self, job_key: str) -> int | None:
        """Return the rank of the job's engine, or None if it is not known."""
        hashed = _hash(job_key)
        for offset in self._offsets(hashed):
            found, _, engine = self._SLOT.unpack_from(self._memory, offset)
            if found == hashed and engine:
                return int(engine) - 1
        return None

    def put(self, job_key: str, rank: int) -> None:
        """Note that the job's last turn went to this engine."""
        hashed = _hash(job_key)
        slots = {
            offset: self._SLOT.unpack_from(self._memory, offset) for offset in self._offsets(hashed)
        }
        own = (offset for offset, (found, *_) in slots.items() if found == hashed)
        offset = next(own, None)
        if offset is None:
            offset = min(slots, key=lambda offset: slots[offset][1])
        self._SLOT.pack_into(self._memory, offset, hashed, int(time.monotonic()), rank + 1)

    def _offsets(self, hashed: int) -> list[int]:
        slots = range(hashed, hashed + self.NUM_PROBES)
        return [slot % self.NUM_SLOTS * self._SLOT.size for slot in slots]


def _hash(job_key: str) -> int:
    return int.from_bytes(hashlib.blake2b(job_key.encode(), digest_size=8).digest(), "little")


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


class JobBalancer:
    """Says which engine a job's request goes to; one for each of vLLM's engine-core clients."""

    def __init__(self, table: EngineTable) -> None:
        self._table = table

    @guarded(None)
    def rank_for(self, request: Any, loads: list[list[float]]) -> int | None:
        """Return the engine of a request's job, or None where stock chooses.

        loads: of each engine its numbers of waiting and running requests, at most 100 ms old.
        """
        tags = tags_of(request)
        if tags.job_id is None:
            return None
        rank = self._table.get(tags.job_id)
        if rank is not None and rank < len(loads):
            num_tokens = len(request.prompt_token_ids or ())
            return None if is_worth_moving(rank, num_tokens, len(loads)) else rank
        if tags.parent_job_id is not None:
            rank = self._table.get(tags.parent_job_id)
            if rank is not None and rank < len(loads) and loads[rank][0] == 0:
                return rank
        return None

    @guarded(None)
    def sent(self, request: Any, rank: int) -> None:
        """A request went to this engine."""
        job_id = tags_of(request).job_id
        if job_id is not None:
            self._table.put(job_id, rank)


def is_worth_moving(rank: int, num_tokens: int, num_engines: int) -> bool:
    """Return True if a returning turn is expected to begin earlier on another engine.

    There it computes its whole prompt of `num_tokens`. By the engines' own reports, it must so save
    more than that of the time that returning turns have lately waited.
    """
    now_s = time.monotonic()
    fresh = {
        other: report
        for other in range(num_engines)
        if (report := engine_reports.get(other)) is not None
        and now_s - report.received_s < REPORT_LIFE_S
    }
    here = fresh.pop(rank, None)
    if here is None or not fresh:
        return False
    return here.wait_s > min(
        report.wait_s + _prefill_s(report, num_tokens) for report in fresh.values()
    )


def _prefill_s(report: EngineReport, num_tokens: int) -> float:
    constant_s, linear_s, quadratic_s = report.prefill_reload_s
    return constant_s + (linear_s + quadratic_s * num_tokens) * num_tokens


def install() -> None:
    """Wrap vLLM's choice of an engine, once in this process."""
    from vllm.v1.engine.core_client import DPLBAsyncMPClient

    choose = DPLBAsyncMPClient.get_core_engine_for_request

    @functools.wraps(choose)
    def get_core_engine_for_request(self: Any, request: Any) -> Any:
        balancer = _balancer_of(self)
        is_streamed_on = request.request_id in self.reqs_in_flight
        if balancer is not None and request.data_parallel_rank is None and not is_streamed_on:
            request.data_parallel_rank = balancer.rank_for(request, self.lb_engines)
        engine = choose(self, request)
        if balancer is not None:
            balancer.sent(request, self.core_engines.index(engine))
        return engine

    DPLBAsyncMPClient.get_core_engine_for_request = get_core_engine_for_request


def _balancer_of(client: Any) -> JobBalancer | None:
    """Return the client's balancer, made for its first request; None under other policies."""
    if not hasattr(client, "agentkv_balancer"):
        client.agentkv_balancer = _make_balancer(client)
    balancer: JobBalancer | None = client.agentkv_balancer
    return balancer


@guarded(None)
def _make_balancer(client: Any) -> JobBalancer | None:
    if policy_of(client.vllm_config) is None:
        return None
    has_others = client.client_count > 1
    return JobBalancer(EngineTable.of_server() if has_others else EngineTable.of_this_process())
