"""Looks for blocks lost or mixed up between the KV cache and a tier, under random events.

`python -m tests.soak.tier --events 1000000`. vLLM's real scheduler and the scheduler's side of its
OffloadingConnector run under each of our policies, or with `--stock` without ours, on tiny pools
and tiers; the worker is made up: its transfers take random numbers of steps, and some loads fail.
What each block holds is tracked. An event is a turn, an abort, a signal, a reset, a step, or the
end of a transfer. What stock vLLM does not survive either is left out by name: the methods `can_*`
and `kept_out_for_ever`. The last line is one JSON document; exit status 1 with the seed of the
first engine that broke a promise.
"""

import argparse
import json
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus

from agentkv.command_line import whole_number
from agentkv.evals.simulator.vllm_scheduler import quiet_vllm
from tests.integrations.vllm.harness import Engine
from tests.soak.agents import MAX_OUTPUT_TOKENS, MAX_PROMPT_TOKENS, Agents
from tests.stepped_engine import BLOCK_TOKENS

BLOCK_BYTES = 4096
"""Of the made-up model with one group of KV blocks, as vLLM rounds it for the tier."""
EVENTS_AN_ENGINE = 2000
GARBAGE = None
"""What a block holds that a load will write, or has failed to write."""


class WorkerOfTier:
    """vLLM's worker side without a device: what is in each block, and transfers under way.

    A transfer reads its source and writes its target as late as vLLM allows: when it is reported.
    """

    def __init__(
        self, scheduler: Any, rng: random.Random, *, mean_steps: float, fails: float
    ) -> None:
        self._scheduler = scheduler
        self._rng = rng
        self._mean_steps, self._fails = mean_steps, fails
        self._cache: dict[int, Any] = {}
        self._tier: dict[int, Any] = {}
        self._under_way: dict[int, tuple[Any, bool]] = {}
        self.counts: Counter[str] = Counter()

    def run(self, output: Any) -> KVConnectorOutput:
        """One step: what vLLM waits for, then the new loads, the computation, and the rest."""
        meta, report = output.kv_connector_metadata, KVConnectorOutput()
        report.kv_connector_worker_meta = OffloadingWorkerMetadata()
        report.finished_recving, report.failed_recving = set(), set()
        stores = {number: (job, True) for number, job in meta.store_jobs.items()}
        for number in sorted(meta.jobs_to_flush or ()):
            if number in stores:
                self._under_way[number] = stores.pop(number)
            if number in self._under_way:
                self._end(number, report)
        for number, job in meta.load_jobs.items():
            self._under_way[number] = (job, False)
            self._cache |= dict.fromkeys(job.dst_spec.block_ids.tolist(), GARBAGE)
        self._compute(output)
        self._under_way |= stores
        for number in sorted(self._under_way):
            if self._rng.random() * self._mean_steps < 1:
                self._end(number, report)
        return report

    def _compute(self, output: Any) -> None:
        """Check what each request builds on, and note what it writes."""
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            request = self._scheduler.requests[request_id]
            end = request.num_computed_tokens
            begin = end - num_tokens
            for group, ids in enumerate(self._scheduler.kv_cache_manager.get_block_ids(request_id)):
                for index, block_id in enumerate(ids[: -(-end // BLOCK_TOKENS)]):
                    if block_id and index * BLOCK_TOKENS < begin:
                        self._check(self._cache.get(block_id), request, index, group)
                    elif block_id:
                        self._cache[block_id] = (request, index, group)

    def _check(self, held: Any, request: Any, index: int, group: int) -> None:
        """Raise AssertionError unless a block holds what this block of the request must."""
        assert held is not GARBAGE, f"block {index} of {request.request_id} was never written"
        writer, written_index, written_group = held
        assert (written_index, written_group) == (index, group), f"{held} for block {index}"
        same = writer.block_hashes[index : index + 1] == request.block_hashes[index : index + 1]
        assert writer is request or same, f"{request.request_id} reads {writer.request_id}'s block"

    def _end(self, number: int, report: Any) -> None:
        job, is_store = self._under_way.pop(number)
        report.kv_connector_worker_meta.mark_completed(number)
        source, target = job.src_spec.block_ids.tolist(), job.dst_spec.block_ids.tolist()
        self.counts["stores" if is_store else "loads"] += 1
        if is_store:
            for block_id, chunk in zip(source, target, strict=True):
                assert self._cache[block_id] is not GARBAGE
                self._tier[chunk] = self._cache[block_id]
            return
        report.finished_recving.add(job.req_id)
        request = self._scheduler.requests[job.req_id]
        if self._rng.random() < self._fails:
            self.counts["failed loads"] += 1
            has_one_group = len(job.dst_spec.group_sizes) == 1
            if has_one_group and self._rng.random() < 0.5:  # a part of it is good
                first_bad = self._rng.randrange(len(target))
                report.invalid_block_ids |= set(target[first_bad:])
                source, target = source[:first_bad], target[:first_bad]
            else:
                report.failed_recving.add(job.req_id)
                return
        places = {
            block_id: (index, group)
            for group, ids in enumerate(self._scheduler.kv_cache_manager.get_block_ids(job.req_id))
            for index, block_id in enumerate(ids)
        }
        for chunk, block_id in zip(source, target, strict=True):
            self._check(self._tier[chunk], request, *places[block_id])
            self._cache[block_id] = self._tier[chunk]


class TierEngine(Engine):
    """A stepped engine whose tier has that worker."""

    def __init__(self, rng: random.Random, *, slow: float, fails: float, **options: Any) -> None:
        super().__init__(**options)
        self.worker = WorkerOfTier(self.scheduler, rng, mean_steps=slow, fails=fails)
        self.tier = self.scheduler.connector.connector_scheduler

    def _transfer(self, output: Any) -> KVConnectorOutput:
        return self.worker.run(output)

    def can_reset_tier(self) -> bool:
        """Whether vLLM 0.32 survives that: its connector asserts that a step lies between two of
        these (offloading/scheduler.py:2064). With a sliding window it stores a live request again
        from its start, from blocks that the window has given to others meanwhile (:2086): the tier
        then holds wrong content."""
        has_window = len(self.scheduler.kv_cache_config.kv_cache_groups) > 1
        is_under_way = bool(self.tier._current_batch_jobs_to_flush)
        return not is_under_way and not (has_window and self.scheduler.requests)

    def can_reset_running(self) -> bool:
        """Whether vLLM 0.32 survives that: it raises if a request that does not run holds blocks,
        for a load (S:2870). It needs an empty tier, too: the connector asserts that a turn which
        was preempted does not load in the next step (offloading/scheduler.py:1862)."""
        ids = self.scheduler.requests.keys() - {each.request_id for each in self.scheduler.running}
        held = (self.scheduler.kv_cache_manager.get_block_ids(each) for each in ids)
        return self.can_reset_tier() and not any(map(any, held))

    def kept_out_for_ever(self) -> list[str]:
        """Requests whose load has failed and for which vLLM 0.32 still reserves all their blocks.

        It leaves them in `_inflight_prefills` (S:1378) when it frees their blocks (S:3154), so each
        later load, their own included, must leave that much room: in a pool without it they, and
        all that wait behind them, never start.
        """
        return [
            request.request_id
            for request in self.scheduler._inflight_prefills
            if request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
            and not request.num_computed_tokens
        ]

    def check_tier(self) -> None:
        """Raise AssertionError if a block of the tier is lost or used twice."""
        manager = self.tier.manager
        used = [chunk.chunk_id for chunk in manager._policy.chunks.values()]
        known = sorted([*used, *manager._free_list])
        assert known == list(range(manager._num_allocated_chunks)), f"chunks lost: {known}"

    def check_tier_at_rest(self) -> None:
        """Raise AssertionError if the connector remembers anything once all requests have ended."""
        tier = self.tier
        leftovers = tier._jobs, tier._req_status, tier._block_id_to_pending_jobs
        assert not any(leftovers), f"the connector remembers {leftovers}"
        assert not tier._chunks_being_loaded
        manager = tier.manager
        assert all(chunk.ref_cnt == 0 for chunk in manager._policy.chunks.values())
        assert manager._num_evictable_cache_chunks == len(manager._policy.chunks)
        assert manager._num_write_pending_chunks == 0


class Play(Agents):
    """Random agents on such an engine, all of them decided by its seed."""

    def __init__(self, seed: str, *, is_stock: bool = False) -> None:
        self._is_stock = is_stock
        super().__init__(seed)

    def draw_shape(self) -> dict[str, Any]:
        rng, shape = self.rng, super().draw_shape()
        shape |= {
            "offload_bytes": BLOCK_BYTES * rng.choice((12, 30, 60, 400)),
            "window_tokens": rng.choice((None, None, 48)),
            "prefill_reload_s": rng.choice((None, [0.0, 1e-4, 0.0], [0.0, 0.1, 0.0])),
        }
        largest = -(-(MAX_PROMPT_TOKENS + MAX_OUTPUT_TOKENS) // BLOCK_TOKENS)
        if shape["window_tokens"] is not None:  # vLLM needs a window and a step's tokens
            in_window = shape["window_tokens"] + shape["max_num_batched_tokens"]
            largest += min(largest, -(-in_window // BLOCK_TOKENS) + 1)
        return {**shape, "num_blocks": rng.randint(largest + 1, 48)}

    def make_engine(self) -> TierEngine:
        classes = {False: Scheduler, True: AsyncScheduler}
        return TierEngine(
            self.rng,
            scheduler_class=classes[self.shape["is_async"]] if self._is_stock else None,
            slow=self.rng.choice((1, 2, 8, 30)),
            fails=self.rng.choice((0, 0, 0.2, 0.6)),
            **self.shape,
        )

    @property
    def num_events(self) -> int:
        return self.counts.total() + self.engine.worker.counts.total()

    def step(self) -> Any:
        output = super().step()
        if output is not None and not output.total_num_scheduled_tokens:
            for request_id in self.engine.kept_out_for_ever():
                self.counts["kept out"] += 1
                self.engine.abort(request_id)
        return output

    def check(self) -> None:
        super().check()
        self.engine.check_tier()

    def check_empty(self) -> None:
        super().check_empty()
        self.engine.check_tier_at_rest()

    def tool(self) -> None:
        if not self._is_stock:
            super().tool()

    def release(self) -> None:
        if not self._is_stock:
            super().release()

    def can_reset_running(self) -> bool:
        return bool(self.engine.can_reset_running())

    def can_reset_tier(self) -> bool:
        return bool(self.engine.can_reset_tier())


def soak(num_events: int, seed: int, *, is_stock: bool = False) -> dict[str, Any]:
    """Play engines for that number of events; counts, and what broke the first promise."""
    counts: Counter[str] = Counter()
    number = num_played = 0
    while num_played < num_events:
        play = Play(f"{seed}/{number}", is_stock=is_stock)
        try:
            play.play(min(EVENTS_AN_ENGINE, num_events - num_played))
            play.finish()
        except Exception:
            trouble = traceback.format_exc()
            return {"engine": f"{seed}/{number}", "shape": play.shape, "trouble": trouble}
        counts += play.counts + play.engine.worker.counts
        num_played += play.num_events
        number += 1
    return {"events": num_played, "engines": number, "seed": seed, "counts": dict(counts)}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.soak.tier", description=__doc__)
    parser.add_argument("--events", type=whole_number(1), default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stock", action="store_true", help="vLLM's own scheduler")
    options = parser.parse_args(argv)
    quiet_vllm()
    began_s = time.monotonic()
    found = soak(options.events, options.seed, is_stock=options.stock)
    if "trouble" in found:
        print(found["trouble"], file=sys.stderr)
    print(json.dumps({**found, "took_s": round(time.monotonic() - began_s)}))
    return int("trouble" in found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
