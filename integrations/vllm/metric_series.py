"""The Prometheus series with prefix `agentkv:`, and how the engine's deltas reach them.

Labels `model_name` and `engine` come first, as on vLLM's own series. It knows nothing of vLLM.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from .counters import CounterName

_COMMON_LABELS = ("model_name", "engine")

_GAUGES: Mapping[str, str] = {
    "pinned_jobs": "Jobs whose KV blocks are pinned now.",
    "pinned_blocks": "KV blocks that are pinned now.",
}

# name -> help, and the values known beforehand of its one label, so that all exist at 0
_COUNTERS: Mapping[CounterName, tuple[str, str | None, Sequence[str]]] = {
    "pins_total": (
        "Finished turns whose KV blocks were pinned, by predicted speed of the tool; those of a "
        "slow one were freed at once, a pin that expired at a TTL of 0.",
        "speed",
        ("none", "fast", "slow", "uncertain"),
    ),
    "pin_ends_total": (
        "Pins that ended, by reason.",
        "reason",
        (
            "returned",
            "expired",
            "pressure",
            "last_step",
            "released",
            "aborted",
            "reset",
        ),
    ),
    "holds_total": ("Jobs whose first turn had to wait until they were expected to fit.", None, ()),
    "tool_observations_total": (
        "Tool durations learned from, by where they came from.",
        "source",
        ("client", "piggyback", "gap", "cut_short"),
    ),
    "tool_signals_ignored_total": (
        "Tool signals about another turn than the job's last one.",
        None,
        (),
    ),
    "preemptions_total": ("Requests that were preempted.", None, ()),
    "bad_tags_total": (
        "Requests with a tag of a wrong type or out of range.",
        None,
        (),
    ),
}

# Tools run from milliseconds (ls) to the better part of an hour (a build); about three a decade.
_SECONDS_BUCKETS = (
    *(0.01, 0.03, 0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0),
    *(20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0),
)
_HISTOGRAMS: Mapping[str, str] = {
    "tool_duration_seconds": "Durations of tools between two turns of a job.",
    "pin_ttl_seconds": "Time-to-live given to each new pin.",
    "pin_held_seconds": "How long each pin lasted.",
}


class MetricSeries:
    """All series of this process; one instance only, since a name registers once."""

    def __init__(self) -> None:
        self._gauges = {
            # Only the API server that got the latest stats knows the present value.
            name: Gauge(f"agentkv:{name}", text, _COMMON_LABELS, multiprocess_mode="mostrecent")
            for name, text in _GAUGES.items()
        }
        self._counters = {
            name: Counter(
                f"agentkv:{name}",
                text,
                (*_COMMON_LABELS, label) if label else _COMMON_LABELS,
            )
            for name, (text, label, _) in _COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(f"agentkv:{name}", text, _COMMON_LABELS, buckets=_SECONDS_BUCKETS)
            for name, text in _HISTOGRAMS.items()
        }

    def start(self, common: Mapping[str, str]) -> None:
        """Make every series of one engine exist, at 0 if it did not; `common` are its labels."""
        for gauge in self._gauges.values():
            gauge.labels(**common)
        for histogram in self._histograms.values():
            histogram.labels(**common)
        for name, (_, label, values) in _COUNTERS.items():
            for extra in [{label: value} for value in values] if label else [{}]:
                self._counters[name].labels(**common, **extra)

    def apply(self, payload: Mapping[str, Any], common: Mapping[str, str]) -> None:
        """Take over one stats payload: present gauges, counted deltas, new observations."""
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
    """This process's series, registered on the first call."""
    return MetricSeries()
