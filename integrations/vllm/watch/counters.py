"""Counts what happens to jobs: totals for `/v1/agentkv/stats`, deltas for Prometheus.

A watcher of the engine process, which holds the truth. API servers add up the deltas that they
receive with vLLM's scheduler stats. `COUNTERS` and `HISTOGRAMS` are the one place to declare one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from functools import partial, partialmethod
from typing import Any, NamedTuple

from agentkv.events import Admitted, Decided, Event, Finished, Pinned, ToolMeasured, Unpinned
from agentkv.policies.pins import MISS_REASONS, PIN_ENDS

TURN_LABELS = ("1", "1", "2", *["3-5"] * 3, *["6-10"] * 5, "11+")
"""By a turn's number, the label of its range; that of the last counts for all later turns."""
LAST_LABELLED = len(TURN_LABELS) - 1
_TURNS = tuple(dict.fromkeys(TURN_LABELS))

MAX_PENDING_OBSERVATIONS = 1000
"""Observations of a histogram kept between two deltas; older ones are dropped."""


class CounterSpec(NamedTuple):
    """Says what Prometheus shows of a counter: with a label, a series for each known value."""

    text: str
    label: str = ""
    values: tuple[str, ...] = ()


COUNTERS: Mapping[str, CounterSpec] = {
    "pins_total": CounterSpec(
        "Finished turns whose KV blocks were pinned, by predicted speed of the tool.",
        *("speed", ("none", "fast", "slow", "uncertain")),
    ),
    "pin_ends_total": CounterSpec("Pins that ended, by reason.", "reason", PIN_ENDS),
    "prompt_tokens_total": CounterSpec("Prompt tokens, by turn number.", "turn", _TURNS),
    "hit_tokens_total": CounterSpec("Of them, those in the cache.", "turn", _TURNS),
    **{
        name: CounterSpec(f"{text} of turns that have ended.", "turn", ("first", "later"))
        for name, text in (
            ("finished_turns_total", "Number"),
            ("ttft_seconds_total", "Seconds from arrival to the first token"),
            ("turn_seconds_total", "Seconds from arrival to the end"),
            ("output_tokens_total", "Generated tokens"),
        )
    },
    "predictions_total": CounterSpec(
        "Tools that ran as predicted or not: up to the median, up to the 0.9 quantile, longer.",
        *("duration", ("to_p50", "to_p90", "over_p90")),
    ),
    "holds_total": CounterSpec("Jobs whose first turn waited until it was expected to fit."),
    "inferred_jobs_total": CounterSpec("Jobs found in requests without a job_id."),
    "shared_ids_total": CounterSpec("Ids that named several conversations at once."),
    "tool_observations_total": CounterSpec(
        "Tool durations learned from.", "source", ("client", "piggyback", "gap")
    ),
    "tool_signals_ignored_total": CounterSpec("Tool events about a turn before the last one."),
    "preemptions_total": CounterSpec("Requests that were preempted."),
    "bad_tags_total": CounterSpec("Requests with a tag of a wrong type or out of range."),
    "policy_faults_total": CounterSpec("Answers of the policy that failed, unusable or late."),
    "recomputed_tokens_total": CounterSpec(
        "Tokens of earlier turns that had to be computed again, by reason.", "reason", MISS_REASONS
    ),
}

HISTOGRAMS: Mapping[str, str] = {
    "tool_duration_seconds": "Durations of tools between two turns of a job.",
    "pin_ttl_seconds": "Time-to-live given to each new pin.",
    "pin_held_seconds": "How long each pin lasted.",
    "first_turn_wait_seconds": "Waits of turns that open a job, from arrival to their blocks.",
    "continuing_turn_wait_seconds": "Waits of all other turns, from arrival to their blocks.",
}


class Counters:
    """Keeps labelled counters and histogram observations, as events say."""

    def __init__(self) -> None:
        self._totals: defaultdict[tuple[str, str, str], float] = defaultdict(int)
        """Until the last delta."""
        self._pending: defaultdict[tuple[str, str, str], float] = defaultdict(int)
        """Since then."""
        self._observations: defaultdict[str, deque[float]] = defaultdict(
            partial(deque, maxlen=MAX_PENDING_OBSERVATIONS)
        )

    def add(self, name: str, label: str = "", value: str = "", amount: float = 1) -> None:
        """Increase a counter, with at most one label."""
        self._pending[name, label, value] += amount

    def observe(self, name: str, value: float) -> None:
        """Add an observation to the histogram `name`."""
        self._observations[name].append(value)

    # Events

    def on_admitted(self, event: Admitted) -> None:
        turn, pending = event.turn, self._pending
        which = "first_turn" if turn.is_first else "continuing_turn"
        self.observe(f"{which}_wait_seconds", event.waited_s)
        if not turn.is_side_request:
            number = TURN_LABELS[min(turn.number, LAST_LABELLED)]
            pending["prompt_tokens_total", "turn", number] += turn.num_prompt_tokens
            pending["hit_tokens_total", "turn", number] += turn.hit_tokens

    def on_finished(self, event: Finished) -> None:
        turn, pending = event.turn, self._pending
        which = ("turn", "first" if turn.is_first else "later")
        took_s = turn.ended_s - turn.arrived_s
        if not turn.is_side_request:
            pending["finished_turns_total", *which] += 1
            pending["ttft_seconds_total", *which] += took_s if turn.ttft_s is None else turn.ttft_s
            pending["turn_seconds_total", *which] += took_s
            pending["output_tokens_total", *which] += event.output_tokens

    def on_pinned(self, event: Pinned) -> None:
        if event.pin.is_decided:
            self._pending["pins_total", "speed", "none"] += 1
            self.observe("pin_ttl_seconds", event.ttl_s)

    def on_decided(self, event: Decided) -> None:
        if event.is_first and event.pin is not None:
            self._pending["pins_total", "speed", event.decision.speed or "none"] += 1
            self.observe("pin_ttl_seconds", event.pin.ttl_s)

    def on_unpinned(self, event: Unpinned) -> None:
        if not event.pin.is_decided:  # it has ended before its reply was read
            self._pending["pins_total", "speed", "none"] += 1
            self.observe("pin_ttl_seconds", event.pin.ttl_s)
        self._pending["pin_ends_total", "reason", event.reason] += 1
        self.observe("pin_held_seconds", event.held_s)

    def _count(self, name: str, event: Event) -> None:
        self.add(name)

    on_held_back = partialmethod(_count, "holds_total")
    on_preempted = partialmethod(_count, "preemptions_total")
    on_inferred = partialmethod(_count, "inferred_jobs_total")
    on_id_shared = partialmethod(_count, "shared_ids_total")
    on_tool_ignored = partialmethod(_count, "tool_signals_ignored_total")
    on_rules_failed = partialmethod(_count, "policy_faults_total")

    def on_tool_measured(self, event: ToolMeasured) -> None:
        self._pending["tool_observations_total", "source", event.source] += 1
        self.observe("tool_duration_seconds", event.duration_s)
        if event.reached is not None:
            self._pending["predictions_total", "duration", event.reached] += 1

    # Answers

    @property
    def has_delta(self) -> bool:
        """Tell whether anything was counted since the last `take_delta`."""
        return bool(self._pending)

    def take_delta(self) -> dict[str, Any]:
        """Return and forget what was counted since the last call, as plain data."""
        counters = []
        for key, amount in self._pending.items():
            self._totals[key] += amount
            name, label, value = key
            counters.append([name, {label: value} if label else {}, amount])
        observations = {name: list(values) for name, values in self._observations.items()}
        self._pending.clear()
        self._observations.clear()
        return {"counters": counters, "observations": observations}

    def totals(self) -> dict[str, Any]:
        """Return all totals: a number per counter, or a number per label value."""
        together = self._totals.copy()
        for key, amount in self._pending.items():
            together[key] += amount
        totals: dict[str, Any] = {}
        for (name, label, value), amount in sorted(together.items()):
            if label:
                totals.setdefault(name, {})[value] = amount
            else:
                totals[name] = amount
        return totals
