"""What a vLLM server's `/metrics` page says about its KV cache, as plain values.

Knows the names of vLLM's and agentkv's series, and nothing about HTTP or experiments.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

Labels = Mapping[str, str]


class PageError(Exception):
    """A page of the server that lacks what the experiment stands on."""


@dataclass(frozen=True, slots=True)
class BlockPool:
    """The KV cache of each engine, without vLLM's null block, which never holds anything."""

    block_size: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One reading of the page. The agentkv parts are empty on a server without the plugin."""

    usage_by_engine: Mapping[str, float]
    num_unfinished: int
    num_finished: int
    cached_tokens: int
    pinned_blocks: int | None
    num_pins: int
    pin_ends: Mapping[str, int]

    def held_blocks(self, pool: BlockPool) -> int:
        """Blocks in use over all engines, from usage = 1 - free / (blocks - 1)."""
        return sum(round(usage * pool.num_blocks) for usage in self.usage_by_engine.values())


def parse_snapshot(page: str) -> Snapshot:
    """Reads one page; raises PageError if the usage of the KV cache is not on it."""
    samples = _samples(page)
    usage = samples["vllm:kv_cache_usage_perc"]
    if not usage:
        raise PageError(
            "/metrics has no vllm:kv_cache_usage_perc: is this a vLLM server, and does it run"
            " without --disable-log-stats?"
        )
    pinned = samples["agentkv:pinned_blocks"]
    return Snapshot(
        usage_by_engine={labels.get("engine", "0"): value for labels, value in usage},
        num_unfinished=_total(samples, "vllm:num_requests_running")
        + _total(samples, "vllm:num_requests_waiting"),
        num_finished=_total(samples, "vllm:request_success_total"),
        cached_tokens=_total(samples, "vllm:prefix_cache_hits_total"),
        pinned_blocks=_total(samples, "agentkv:pinned_blocks") if pinned else None,
        num_pins=_total(samples, "agentkv:pins_total"),
        pin_ends={
            labels["reason"]: int(value) for labels, value in samples["agentkv:pin_ends_total"]
        },
    )


def parse_block_pool(page: str) -> BlockPool:
    """The pool as vLLM's own `cache_config_info` tells it; raises PageError if it does not."""
    for labels, _ in _samples(page)["vllm:cache_config_info"]:
        try:
            return BlockPool(int(labels["block_size"]), int(labels["num_gpu_blocks"]) - 1)
        except (KeyError, ValueError):
            continue
    raise PageError("/metrics does not tell block size and number of blocks")


def _samples(page: str) -> defaultdict[str, list[tuple[Labels, float]]]:
    found: defaultdict[str, list[tuple[Labels, float]]] = defaultdict(list)
    try:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                found[sample.name].append((sample.labels, sample.value))
    except ValueError as error:
        raise PageError(f"/metrics is no Prometheus text: {error}") from error
    return found


def _total(samples: Mapping[str, list[tuple[Labels, float]]], name: str) -> int:
    return int(sum(value for _, value in samples.get(name, ())))
