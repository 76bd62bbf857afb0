"""The `agentkv` policy: who goes first, what may be taken from whom, who is admitted, who yields.

While memory is not contended, every rule but the TTL leaves everything as stock has it.
docs/explanation/agentkv-policy.md has the reasons.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, model_validator

from agentkv.durations import Prediction
from agentkv.durations.ttl import TTL, best_hold_s
from agentkv.errors import InputError

from .base import UNPINNED, AdmissionRequest, AllocationRequest, Policy, Rank
from .context_serve import READING_TTL_S
from .costs import RestoreCost
from .forecast import MAX_TURNS, PRIOR_TURNS
from .jobs import Decision, Turn
from .pins import Pin
from .settings import MAX_PRIORITY, Settings

URGENT = UNPINNED - MAX_PRIORITY - 1
"""Tier before those of all priorities."""
PRESSURE_BREAK_EVENS = 10
"""Pressure lasts for this many break-even times of the context that did not fit. Tuned in the
simulator: with 1 the longest waits are twice as long."""
LIFETIMES = 4
"""A newcomer may be overtaken by this many times the turns that all present jobs have together,
from first to last. Chosen: only jobs that do not end reach it."""
NEARLY_EMPTY = 0.5
"""Share of the pool up to which all jobs and a new one may fill it in their next PRIOR_TURNS turns,
however long earlier ones were. Chosen; 27 simulations (8 workloads, 3 seeds) stay the same."""

BATCH: Mapping[str, Any] = {"horizon_turns": 3, "patience_s": 86_400.0}
"""Defaults under the goal "batch": memory fills from the start, and no turn goes first because it
has waited. Measured in studies/rollouts."""
FIRST_RESPONSE: Mapping[str, Any] = {"admission": False, "patience_s": 60.0}
"""Defaults that favour the first response. docs/explanation/agentkv-policy.md has the trade."""


class AgentKVSettings(Settings):
    """Sets what counts for the `agentkv` policy, and how it admits new jobs."""

    goal: Literal["jobs", "batch"] = "jobs"
    """Shorten the mean job ("jobs"), or the time until the last trajectory of a training step ends
    ("batch", which changes the defaults of the settings in BATCH)."""
    favour: Literal["throughput", "first-response"] = "throughput"
    """While memory is short, keep whole jobs short, or the wait for their first turns
    ("first-response", which changes the defaults of the settings in FIRST_RESPONSE)."""
    horizon_turns: int = Field(MAX_TURNS, ge=0, le=MAX_TURNS)
    """The turns of each job for which a new job must be expected to fit."""
    headroom: float = Field(0.0, ge=0, le=0.9, allow_inf_nan=False)
    """The share of the pool that new jobs are expected to leave free."""
    admission: bool = True
    """New jobs wait until they are expected to fit; False: others see to that."""

    @model_validator(mode="before")
    @classmethod
    def _with_aim(cls, given: Any) -> Any:
        """Fill what was not given with the defaults of the goal."""
        if not isinstance(given, Mapping):
            return given
        is_batch, is_first = given.get("goal") == "batch", given.get("favour") == "first-response"
        if is_batch and is_first:
            raise InputError(
                "'goal' \"batch\" counts whole jobs, 'favour' \"first-response\" first turns: "
                "leave out one of the two"
            )
        return {**(BATCH if is_batch else {}), **(FIRST_RESPONSE if is_first else {}), **given}


class AgentKVPolicy(Policy):
    """Pins, orders, admits and preempts the jobs of one engine by four rules.

    1. A new job is admitted once all present jobs are expected to fit to their end.
    2. Idle KV is pinned for as long as that costs less than recomputing it, or loading it, where a
       tier has copies.
    3. If memory runs short all the same, jobs go in order of arrival, and a waiting turn takes idle
       KV only from jobs that arrived after its own, last blocks first. A running turn takes from
       all jobs, as does a waiting one if nothing runs: nothing can deadlock.
    4. Waits are bounded, by `patience_s` and `max_overtakes`.

    If the first response is favoured, no new job is held back; under pressure the first turns of
    jobs go first, by arrival, and take idle KV from all.
    """

    settings_class = AgentKVSettings
    settings: AgentKVSettings
    uses_predictions = True
    allows_partial_eviction = True
    starved_rank = (URGENT - 1, 0, 0)

    def __init__(self, settings: Settings, pool_tokens: int) -> None:
        super().__init__(settings, pool_tokens)
        self._best_priority = 0
        self._favours_first_response = self.settings.favour == "first-response"

    @functools.cached_property
    def has_admission_control(self) -> bool:
        return self.settings.admission and super().has_admission_control

    def break_even_s(self, cost: RestoreCost) -> float:
        """Return the seconds of pinning a context that cost as much as recomputing it.

        Pinning n tokens takes n token-seconds of memory a second; recomputing them costs as much as
        letting the whole pool wait for `pool_seconds`.
        """
        return self.pool_tokens * cost.pool_seconds / max(cost.num_tokens, 1)

    def price_s(self, cost: RestoreCost) -> float:
        """Return the seconds of pinning a context that cost as much as restoring it.

        The part that is recomputed costs `break_even_s`; the part that a tier loads back, the
        seconds of loading, in which its memory is taken already.
        """
        recompute_s = self.break_even_s(cost)
        return cost.loaded_share * cost.load_s + (1.0 - cost.loaded_share) * recompute_s

    def pressure_s(self, cost: RestoreCost) -> float:
        return PRESSURE_BREAK_EVENS * self.break_even_s(cost)

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        """Pin for the price of restoring, also where the reply runs nothing known."""
        seconds = max(self.price_s(cost), READING_TTL_S)
        return self.capped(seconds, "until the pin costs as much as coming back")

    def decide(
        self, command: str | None, cost: RestoreCost, prediction: Prediction | None = None
    ) -> Decision:
        """Pin until the expected cost of pinning and of restoring is least."""
        if prediction is None:
            return Decision(self.undecided_ttl(cost), command)
        price_s = self.price_s(cost)
        hold_s = best_hold_s(prediction.distribution.p_over, price_s)
        odds = (
            f"P(longer) {prediction.distribution.p_over(hold_s):.2f}"
            if hold_s
            else "too long for a pin"
        )
        worth = f"coming back is worth {price_s:.2f} s of a pin"
        ttl = self.capped(hold_s, f"{odds}, {worth}")
        decision = Decision.predicted(command, prediction, ttl, is_from_now=False)
        if command is None:
            usual_share = 1.0 - prediction.distribution.p_over(self.settings.max_ttl_s)
            typical_s = prediction.distribution.quantile_s(usual_share / 2)
            decision = replace(decision, doubtful_after_s=typical_s)
        return decision

    def rank(self, turn: Turn, *, is_preempted: bool, is_pinned: bool) -> Rank:
        """Order turns under pressure by client priority, then by the job's arrival, or what it has
        to compute if the first response is favoured; else as stock does.

        An urgent turn comes before all others. A first turn that has aged out counts as of the
        best priority.
        """
        self._best_priority = min(self._best_priority, turn.job.priority)
        if not self.pressure.is_on:
            return (UNPINNED, turn.order, 0)
        if self.is_urgent(turn):
            return (URGENT, turn.job.order, turn.order)
        priority = self._best_priority if turn.has_aged_out else turn.job.priority
        place = turn.job.order
        if self._favours_first_response:
            cached_tokens = turn.common_tokens if is_pinned else 0
            goes_first = is_preempted or turn.is_first
            place = 0 if goes_first else turn.num_prompt_tokens - cached_tokens
        return (UNPINNED + priority, place, turn.order)

    def is_urgent(self, turn: Turn) -> bool:
        """Return whether a turn that continues its job has waited out the patience."""
        return turn.has_aged_out and not turn.is_first

    def victim_rank(self, turn: Turn) -> Rank:
        """Preempt the least urgent priority first, and in it the newest job."""
        return (UNPINNED + turn.job.priority, turn.job.order, turn.order)

    def sorts_running(self) -> bool:
        return self.pressure.is_on

    def pins_that_yield(
        self, pins: Sequence[Pin[Any]], request: AllocationRequest
    ) -> Sequence[Pin[Any]]:
        """Give up all pins for a request that has blocks, and if nothing runs: doubtful ones first,
        the longest silent before the others, then those of the newest job.

        A waiting turn takes doubtful pins, and those of jobs that arrived after its own, or of all
        if it has aged out or is starved; from none if their blocks would not be enough.
        """
        turn = request.turn
        doubtful = [pin for pin in pins if pin.doubtful_s <= request.now_s]
        if doubtful:
            doubtful.sort(key=lambda pin: pin.pinned_s)
            pins = [*doubtful, *(pin for pin in pins if pin.doubtful_s > request.now_s)]
        if request.has_blocks or request.runs_alone:
            return pins
        if turn is None and not request.is_starved:
            return []
        if self.has_admission_control and turn is not None and turn.is_first and turn.has_aged_out:
            return pins  # it was admitted because the pins hold enough blocks
        opens_job = self._favours_first_response and turn is not None and turn.is_first
        if turn is not None and not (request.is_starved or turn.has_aged_out or opens_job):
            later = [pin for pin in pins[len(doubtful) :] if pin.job_order >= turn.job.order]
            pins = [*doubtful, *later]
        own_id = None if turn is None else turn.job.job_id
        reclaimable = sum(
            max(0, len(pin.blocks) - request.common_blocks)
            if pin.job_id == own_id
            else pin.num_exclusive_blocks
            for pin in pins
        )
        return pins if reclaimable >= request.missing_blocks else []

    def max_overtakes(self, num_turns: float) -> float:
        return LIFETIMES * num_turns

    def why_hold_back(self, request: AdmissionRequest) -> str | None:
        """Hold a new job back until the peak of all jobs fits into the pool less the headroom.

        All jobs are expected to go on turn by turn, each growing until it ends, or for the turns of
        the horizon. Idle KV counts in full only while restoring contexts has cost more than pinning
        them has. While the pool is nearly empty, fewer turns count.
        """
        newcomer, free_blocks = request.newcomer, request.free_blocks
        if newcomer.own_blocks > free_blocks:
            return f"needs {newcomer.own_blocks:.0f} blocks, {free_blocks} are free"
        headroom, horizon = self.settings.headroom, self.settings.horizon_turns
        peak_blocks = request.forecast.peak_blocks_with(newcomer, request.idle_kv_weight, horizon)
        most_blocks = (1.0 - headroom) * request.num_blocks
        if peak_blocks <= most_blocks:
            return None
        near_blocks = request.forecast.peak_blocks_with(newcomer, 1.0, min(horizon, PRIOR_TURNS))
        if near_blocks <= NEARLY_EMPTY * most_blocks:
            return None
        reason = f"{peak_blocks:.0f} blocks expected at the peak, the pool has {request.num_blocks}"
        if horizon < MAX_TURNS:
            reason += f", {horizon} turns ahead"
        if headroom:
            reason += f", {headroom:.0%} of them headroom"
        if request.idle_kv_weight != 1.0:
            reason += f"; idle KV counts by {request.idle_kv_weight:.0%}"
        return reason
