"""Counters of the policy's decisions: totals for `/v1/agentkv/stats`, deltas for Prometheus.

The retention room counts, in the engine process, which holds the truth. API servers add up the
deltas that they receive with vLLM's scheduler stats.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any, Literal

CounterName = Literal[
    "pins_total",
    "pin_ends_total",
    "prompt_tokens_total",
    "hit_tokens_total",
    "predictions_total",
    "holds_total",
    "inferred_jobs_total",
    "tool_observations_total",
    "tool_signals_ignored_total",
    "preemptions_total",
    "bad_tags_total",
    "policy_faults_total",
    "predictor_faults_total",
    "listener_faults_total",
    "listener_drops_total",
    "saved_prefill_tokens_total",
    "saved_engine_seconds_total",
    "stock_hit_tokens_total",
    "recomputed_tokens_total",
]
"""Counters, each with a Prometheus series of the same name."""

UNLABELLED: tuple[CounterName, ...] = (
    "holds_total",
    "inferred_jobs_total",
    "tool_signals_ignored_total",
    "preemptions_total",
    "bad_tags_total",
    "policy_faults_total",
    "predictor_faults_total",
    "listener_faults_total",
    "listener_drops_total",
)
"""Counters without a label; they are 0 until something is counted."""

TURN_RANGES: tuple[tuple[int, str], ...] = ((1, "1"), (2, "2"), (5, "3-5"), (10, "6-10"))
"""The last turn of each range of turns, and the range's label; later turns are `LATER_TURNS`."""
LATER_TURNS = "11+"

MAX_PENDING_OBSERVATIONS = 1000
"""Observations of a histogram kept between two deltas; older ones are dropped."""


def turn_range(turn: int) -> str:
    """Return the label of the range that a turn's number falls in."""
    return next((label for last, label in TURN_RANGES if turn <= last), LATER_TURNS)


class Counters:
    """Labelled counters and histogram observations."""

    def __init__(self) -> None:
        self._totals: defaultdict[tuple[CounterName, str, str], float] = defaultdict(int)
        self._pending: defaultdict[tuple[CounterName, str, str], float] = defaultdict(int)
        self._observations: dict[str, deque[float]] = {}

    def add(self, name: CounterName, label: str = "", value: str = "", amount: float = 1) -> None:
        """Increase a counter, with at most one label."""
        key = (name, label, value)
        self._totals[key] += amount
        self._pending[key] += amount

    def observe(self, name: str, value: float) -> None:
        """Add an observation to the histogram `name`."""
        pending = self._observations.get(name)
        if pending is None:
            pending = self._observations[name] = deque(maxlen=MAX_PENDING_OBSERVATIONS)
        pending.append(value)

    @property
    def has_delta(self) -> bool:
        """True if anything was counted since the last `take_delta`."""
        return bool(self._pending)

    def take_delta(self) -> dict[str, Any]:
        """Return and forget what was counted since the last call, as plain data."""
        counters = [
            [name, {label: value} if label else {}, amount]
            for (name, label, value), amount in self._pending.items()
        ]
        observations = {name: list(values) for name, values in self._observations.items()}
        self._pending.clear()
        self._observations.clear()
        return {"counters": counters, "observations": observations}

    def totals(self) -> dict[str, Any]:
        """Return all totals: a number per counter, or a number per label value."""
        totals: dict[str, Any] = {}
        for (name, label, value), amount in sorted(self._totals.items()):
            if label:
                totals.setdefault(name, {})[value] = amount
            else:
                totals[name] = amount
        return totals


class StepStats:
    """Running means over scheduler steps that ran at least one request."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._requests = 0
        self._tokens = 0
        self._usage = 0.0
        self._max_usage = 0.0

    def add(self, num_requests: int, num_tokens: int, kv_cache_usage: float) -> None:
        if not num_requests:
            return
        self.num_steps += 1
        self._requests += num_requests
        self._tokens += num_tokens
        self._usage += kv_cache_usage
        self._max_usage = max(self._max_usage, kv_cache_usage)

    def as_dict(self) -> dict[str, float]:
        num = max(self.num_steps, 1)
        return {
            "num_steps": self.num_steps,
            "mean_batch_size": self._requests / num,
            "mean_batch_tokens": self._tokens / num,
            "mean_kv_cache_usage": self._usage / num,
            "max_kv_cache_usage": self._max_usage,
        }
