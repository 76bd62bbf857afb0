"""The `context_serve` policy: Continuum, except that a prediction decides what a turn's end means.

A tool predicted fast is pinned for, a slow one frees at once, an uncertain one gets Continuum's
TTL. Order, victims and pressure are Continuum's. Source: ContextServe; details in docs/server.md.
Pure rules: no vLLM, no clock, no bookkeeping.
"""

from __future__ import annotations

from agentkv.durations import Prediction
from agentkv.durations.ttl import TTL

from .continuum import ContinuumPolicy, tool_name
from .costs import Rebuild
from .jobs import Decision

READING_TTL_S = 1.0
"""A pin lasts at least so long while its reply is read, which takes milliseconds: a turn that
Continuum would not pin may turn out to run something fast."""


class ContextServePolicy(ContinuumPolicy):
    """ContextServe's rules over one engine's jobs."""

    def undecided_ttl(self, rebuild: Rebuild) -> TTL:
        """TTL of a pin until its reply has been read: Continuum's, and long enough to read it."""
        ttl = self.ttl(None, rebuild.alone_s)
        return self.capped(max(ttl.seconds, READING_TTL_S), f"not decided yet; {ttl.reason}")

    def decide(
        self, command: str | None, rebuild: Rebuild, prediction: Prediction | None = None
    ) -> Decision:
        """FAST pins for the predicted TTL, SLOW frees, UNCERTAIN takes Continuum's TTL."""
        if command is None or prediction is None:
            return super().decide(command, rebuild)
        if prediction.speed == "uncertain":
            ttl = self.ttl(tool_name(command), rebuild.alone_s)
            ttl = TTL(ttl.seconds, f"uncertain, so Continuum's: {ttl.reason}")
        else:
            seconds = prediction.ttl_s if prediction.speed == "fast" else 0.0
            ttl = self.capped(seconds, f"{prediction.speed}, by {prediction.source}")
        is_from_now = prediction.speed == "fast"
        return Decision.predicted(command, prediction, ttl, is_from_now=is_from_now)
