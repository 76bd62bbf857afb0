"""Feeds the Prometheus series with prefix `agentkv:` by a vLLM stat logger.

Runs in each API server process. The engine attaches a payload to vLLM's scheduler stats; with
several API servers each stats object reaches one of them, so payloads carry deltas. Labels
`model_name` and `engine` come first, as on vLLM's own series. Under other policies nothing is
registered.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.config import VllmConfig
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import AggregateStatLoggerBase
from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats

from ..server_policy import policy_of
from .counters import COUNTERS, HISTOGRAMS

logger = logging.getLogger(__name__)

_COMMON_LABELS = ("model_name", "engine")

_GAUGES: Mapping[str, str] = {
    "pinned_jobs": "Jobs whose KV blocks are pinned now.",
    "pinned_blocks": "KV blocks that are pinned now.",
    "held_kv_perc": "Share of the KV blocks that is pinned now, 1 is all.",
    "reclaimable_kv_perc": "Share that pins alone keep: memory that is given up once it is short.",
    "running_kv_perc": "Share that is in use and not reclaimable.",
    "live_jobs": "Jobs that the engine remembers.",
    "under_pressure": "1 while requests are in the engine and memory has run short lately.",
}

# Tools run from milliseconds (ls) to an hour (a build): about three buckets a decade.
_SECONDS_BUCKETS = (
    *(0.01, 0.03, 0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0),
    *(20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0),
)


class MetricSeries:
    """Holds all series of this process, once, since prometheus_client registers a name once."""

    def __init__(self) -> None:
        self._gauges = {
            # Only the API server that received the latest stats knows the current value.
            name: Gauge(f"agentkv:{name}", text, _COMMON_LABELS, multiprocess_mode="mostrecent")
            for name, text in _GAUGES.items()
        }
        self._counters = {
            name: Counter(
                f"agentkv:{name}",
                text,
                (*_COMMON_LABELS, label) if label else _COMMON_LABELS,
            )
            for name, (text, label, _) in COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(f"agentkv:{name}", text, _COMMON_LABELS, buckets=_SECONDS_BUCKETS)
            for name, text in HISTOGRAMS.items()
        }

    def start(self, common: Mapping[str, str]) -> None:
        """Create every series of an engine at 0; `common` are its labels."""
        for gauge in self._gauges.values():
            gauge.labels(**common)
        for histogram in self._histograms.values():
            histogram.labels(**common)
        for name, (_, label, values) in COUNTERS.items():
            for extra in [{label: value} for value in values] if label else [{}]:
                self._counters[name].labels(**common, **extra)

    def apply(self, payload: Mapping[str, Any], common: Mapping[str, str]) -> None:
        """Apply a stats payload: gauges, counter deltas, histogram observations."""
        for name, value in payload["gauges"].items():
            self._gauges[name].labels(**common).set(value)
        for name, labels, amount in payload["counters"]:
            self._counters[name].labels(**common, **labels).inc(amount)
        for name, values in payload["observations"].items():
            histogram = self._histograms[name].labels(**common)
            for value in values:
                histogram.observe(value)


@functools.cache
def metric_series() -> MetricSeries:
    """Return this process's series, registered on the first call."""
    return MetricSeries()


class AgentKVStatLogger(AggregateStatLoggerBase):
    """Feeds the series of all engines of an API server process."""

    def __init__(self, vllm_config: VllmConfig, engine_indexes: list[int]) -> None:
        self._series: MetricSeries | None = None
        self._model_name = str(vllm_config.model_config.served_model_name)
        if policy_of(vllm_config) is None:
            return
        self._series = metric_series()
        for engine_index in engine_indexes:
            self._series.start(self._labels(engine_index))

    def _labels(self, engine_index: int) -> dict[str, str]:
        return {"model_name": self._model_name, "engine": str(engine_index)}

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: MultiModalCacheStats | None = None,
        engine_idx: int = 0,
    ) -> None:
        payload = getattr(scheduler_stats, "agentkv", None)
        if self._series is None or not payload:
            return
        try:
            self._series.apply(payload, self._labels(engine_idx))
        except Exception:  # an exception would end vLLM's output handler, and every request with it
            self._series = None
            logger.exception("agentkv's Prometheus series end here; serving goes on")

    def log_engine_initialized(self) -> None:
        """Log nothing: the scheduler's start-up line names the policy."""


@functools.cache
def add_stat_logger() -> None:
    """Add the stat logger to every AsyncLLM that this process creates under our policies.

    Not with `--disable-log-stats`, which the entry-point group `vllm.stat_logger_plugins` would
    override under every policy (AsyncLLM.__init__, vllm/v1/engine/async_llm.py, 0.31 to 0.33).
    """
    init = AsyncLLM.__init__
    signature = inspect.signature(init)

    @functools.wraps(init)
    def init_with_stat_logger(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs).arguments
        if given["log_stats"] and policy_of(given["vllm_config"]) is not None:
            given["stat_loggers"] = [*(given.get("stat_loggers") or ()), AgentKVStatLogger]
        init(**given)

    AsyncLLM.__init__ = init_with_stat_logger
