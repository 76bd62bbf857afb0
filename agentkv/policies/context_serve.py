"""The `context_serve` policy: Continuum, but a prediction decides how long a turn is pinned.

A tool predicted fast is pinned for, a slow one frees at once, an uncertain one gets Continuum's
TTL. Order, victims and pressure are Continuum's. Source: ContextServe.
Pure rules: no vLLM, no clock, no bookkeeping.
"""

from __future__ import annotations

from agentkv.durations import Prediction
from agentkv.durations.ttl import TTL

from .continuum import ContinuumPolicy, ContinuumSettings, tool_name
from .costs import RestoreCost
from .jobs import Decision

READING_TTL_S = 1.0
"""Shortest TTL while a reply is read, which takes milliseconds: a turn that Continuum would not pin
may turn out to run something fast."""


class ContextServeSettings(ContinuumSettings):
    """Adds ContextServe's own layers to Continuum's settings: people compare against them."""

    predictor: str = "context_serve"


class ContextServePolicy(ContinuumPolicy):
    """Applies ContextServe's rules to one engine's jobs."""

    settings_class = ContextServeSettings
    uses_predictions = True

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        """Pin for Continuum's TTL, and at least long enough to read the reply."""
        ttl = self.ttl(None, cost.alone_s)
        return self.capped(max(ttl.seconds, READING_TTL_S), f"not decided yet; {ttl.reason}")

    def decide(
        self, command: str | None, cost: RestoreCost, prediction: Prediction | None = None
    ) -> Decision:
        """Pin FAST tools for the predicted TTL, free SLOW ones, take Continuum's TTL for others."""
        if command is None or prediction is None:
            return super().decide(command, cost)
        if prediction.speed == "uncertain":
            ttl = self.ttl(tool_name(command), cost.alone_s)
            ttl = TTL(ttl.seconds, f"uncertain, so Continuum's: {ttl.reason}")
        else:
            seconds = prediction.ttl_s if prediction.speed == "fast" else 0.0
            ttl = self.capped(seconds, f"{prediction.speed}, by {prediction.source}")
        is_from_now = prediction.speed == "fast"
        return Decision.predicted(command, prediction, ttl, is_from_now=is_from_now)
