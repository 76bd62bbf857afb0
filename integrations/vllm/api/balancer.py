"""Keeps a job's turns on the data-parallel engine that has its KV.

vLLM's balancer chooses an engine for each request by load: the wrapped method is
DPLBAsyncMPClient.get_core_engine_for_request (vllm/v1/engine/core_client.py, 0.31 to 0.33). Under
our policies the engine of a job's requests is the one whose rank weighs most with the job's key
(rendezvous hashing): every API server chooses the same one, and an engine that comes or goes moves
only the jobs that it gets or had. Requests without a job, with `X-data-parallel-rank` or under
other policies are stock's.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any

from ..engine.requests import tags_of
from ..engine.seam import guarded
from ..server_policy import policy_of


def rank_for(job_key: str, num_engines: int) -> int:
    """Return the rank, from 0, of the engine that serves a job."""

    def weight(rank: int) -> bytes:
        return hashlib.blake2b(f"{rank} {job_key}".encode(), digest_size=8).digest()

    return max(range(num_engines), key=weight)


@guarded(None)
def _choose(request: Any, client: Any) -> int | None:
    """Return the rank for a request of a job; None where stock chooses."""
    job_key = tags_of(request)[0].job_id
    if job_key is None or policy_of(client.vllm_config) is None:
        return None
    return rank_for(job_key, len(client.core_engines))


def install() -> None:
    """Wrap vLLM's choice of an engine, once in this process."""
    from vllm.v1.engine.core_client import DPLBAsyncMPClient

    choose = DPLBAsyncMPClient.get_core_engine_for_request

    @functools.wraps(choose)
    def get_core_engine_for_request(self: Any, request: Any) -> Any:
        is_streamed_on = request.request_id in self.reqs_in_flight
        if request.data_parallel_rank is None and not is_streamed_on:
            request.data_parallel_rank = _choose(request, self)
        return choose(self, request)

    DPLBAsyncMPClient.get_core_engine_for_request = get_core_engine_for_request
