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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..engine.requests import tags_of
from ..engine.seam import guarded
from ..server_policy import policy_of
from ..watch.load_reports import EngineLoad, EngineReport, better_rank, engine_reports


class EngineTable:
    """The engine of each job's last turn, in memory that the API servers of a server share.

    A hash table of a fixed size: of the few slots where a job may stand, a new job takes the one
    not used for longest. Processes write without a lock; a job whose slot two of them wrote at
    once may go to the wrong engine, which costs it one prefill.
    """

    NUM_SLOTS = 1 << 16
    NUM_PROBES = 8
    _SLOT = struct.Struct("<QIi")  # hash of the job's key, second of its last turn, engine + 1

    def __init__(self, memory: mmap.mmap, clock: Callable[[], float] = time.monotonic) -> None:
        self._memory = memory
        self._clock = clock

    @classmethod
    def of_this_process(cls, clock: Callable[[], float] = time.monotonic) -> EngineTable:
        return cls(mmap.mmap(-1, cls.NUM_SLOTS * cls._SLOT.size), clock)

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
        atexit.register(path.unlink, missing_ok=True)
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
        self._SLOT.pack_into(self._memory, offset, hashed, int(self._clock()), rank + 1)

    def _offsets(self, hashed: int) -> list[int]:
        slots = range(hashed, hashed + self.NUM_PROBES)
        return [slot % self.NUM_SLOTS * self._SLOT.size for slot in slots]


def _hash(job_key: str) -> int:
    return int.from_bytes(hashlib.blake2b(job_key.encode(), digest_size=8).digest(), "little")


def rank_for(
    table: EngineTable,
    job_key: str,
    parent_key: str | None,
    num_tokens: int,
    loads: Mapping[int, EngineLoad],
    reports: Mapping[int, EngineReport],
    now_s: float,
) -> int | None:
    """Return the engine of a job's request of `num_tokens`, or None where stock chooses.

    loads: of each engine that takes requests, at most 100 ms old. now_s: on the clock of the
    reports.
    """
    rank = table.get(job_key)
    if rank is not None and rank in loads:
        better = better_rank(rank, num_tokens, loads, reports, now_s)
        return rank if better is None else better
    if parent_key is not None:
        rank = table.get(parent_key)
        if rank is not None and rank in loads and not loads[rank].num_waiting:
            return rank
    return None


@guarded(None)
def _choose(table: EngineTable, request: Any, client: Any) -> int | None:
    """The engine of a request by its tags, and by what vLLM's client knows of the engines."""
    (tags, _), num_tokens = tags_of(request), len(request.prompt_token_ids or ())
    if tags.job_id is None:
        return None
    known = (_loads(client), engine_reports, time.monotonic())
    return rank_for(table, tags.job_id, tags.parent_job_id, num_tokens, *known)


def _loads(client: Any) -> dict[int, EngineLoad]:
    """Waiting and running requests of each engine; also those sent since the last report, as stock
    counts them, so that jobs which leave a full engine at once do not all go to one other."""
    sent = getattr(client, "engine_inflight", {})
    loads = {}
    known = zip(client.core_engines, client.lb_engines, strict=False)  # they differ while it scales
    for rank, (engine, load) in enumerate(known):
        waiting, running = load[:2]
        num_sent = client.client_count * sent.get(engine, 0)
        loads[rank] = EngineLoad(waiting, max(running, num_sent - waiting))
    return loads


@guarded(None)
def _note(table: EngineTable, request: Any, rank: int) -> None:
    job_id = tags_of(request)[0].job_id
    if job_id is not None:
        table.put(job_id, rank)


def install() -> None:
    """Wrap vLLM's choice of an engine, once in this process."""
    from vllm.v1.engine.core_client import DPLBAsyncMPClient

    choose = DPLBAsyncMPClient.get_core_engine_for_request

    @functools.wraps(choose)
    def get_core_engine_for_request(self: Any, request: Any) -> Any:
        if not hasattr(self, "agentkv_engines"):
            self.agentkv_engines = _table_for(self)
        table = self.agentkv_engines
        is_streamed_on = request.request_id in self.reqs_in_flight
        if table is not None and request.data_parallel_rank is None and not is_streamed_on:
            request.data_parallel_rank = _choose(table, request, self)
        engine = choose(self, request)
        if table is not None:
            _note(table, request, self.core_engines.index(engine))
        return engine

    DPLBAsyncMPClient.get_core_engine_for_request = get_core_engine_for_request


@guarded(None)
def _table_for(client: Any) -> EngineTable | None:
    """Make the table of one of vLLM's engine-core clients; None under other policies."""
    if policy_of(client.vllm_config) is None:
        return None
    return EngineTable.of_server() if client.client_count > 1 else EngineTable.of_this_process()
