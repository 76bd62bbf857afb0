"""vLLM stat logger that hands the engine's agentkv payload to the Prometheus series.

Runs in each API server process. With several of them each stats object reaches one, so payloads
carry deltas. Under a policy that is not ours it registers nothing.
"""

from __future__ import annotations

import functools
import inspect
import logging
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import AggregateStatLoggerBase
from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats

from .metric_series import MetricSeries, metric_series
from .server_policy import policy_of

logger = logging.getLogger(__name__)


class AgentKVStatLogger(AggregateStatLoggerBase):
    """One per API server process, for all its engines."""

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
        except Exception:  # raised here, vLLM's output handler would end, and every request with it
            self._series = None
            logger.exception("agentkv's Prometheus series end here; serving goes on")

    def log_engine_initialized(self) -> None:
        """Nothing to say: the plugin's own start-up line names the policy."""


@functools.cache
def add_stat_logger() -> None:
    """Have every AsyncLLM made in this process under our policy log to the series.

    Not the entry-point group `vllm.stat_logger_plugins`: its mere presence overrules
    `--disable-log-stats` under every policy (AsyncLLM.__init__, vllm/v1/engine/async_llm.py, 0.31
    to 0.33), and the stock policies are to stay stock.
    """
    init = AsyncLLM.__init__
    signature = inspect.signature(init)

    @functools.wraps(init)
    def init_with_stat_logger(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs).arguments
        if policy_of(given["vllm_config"]) is not None:
            given["stat_loggers"] = [*(given.get("stat_loggers") or ()), AgentKVStatLogger]
        init(**given)

    AsyncLLM.__init__ = init_with_stat_logger
