"""The `context_serve` policy: Continuum, except that a predictor decides what a turn's end means.

A tool predicted fast is pinned for, a slow one frees at once, an uncertain one gets Continuum's
TTL. Order, victims and pressure are Continuum's. Source: ContextServe; design in docs/server.md.
Pure rules: no vLLM, no clock, no bookkeeping.
"""

from __future__ import annotations

from collections.abc import Callable

from agentkv.commands import analyze_command
from agentkv.durations import DurationPredictor
from agentkv.ttl import TTL

from .continuum import ContinuumPolicy, tool_name
from .decision import Decision
from .settings import Settings

READING_TTL_S = 1.0
"""A pin lasts at least so long while its reply is read, which takes milliseconds: a turn that
Continuum would not pin may turn out to run something fast."""
MAX_READ_CHARS = 64 * 1024
"""Characters of a command that are looked at; of those, the analysis keeps the part it reads."""


def read_part(command: str) -> str:
    """The part of a command that predictors read, 2 KiB at most: long here-documents cut out.

    Also fills the analysis's cache, so that a prediction for the result costs little. Safe in any
    thread.
    """
    text = analyze_command(command[:MAX_READ_CHARS]).text
    analyze_command(text)
    return text


class ContextServePolicy(ContinuumPolicy):
    """ContextServe's rules over one engine's jobs."""

    predicts = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.predictor = DurationPredictor(settings.predictor)
        self.on_observed: Callable[[str, float, bool], None] | None = None
        """Hears of what the predictor learns: command, seconds, whether they are a lower bound."""

    def read_part(self, command: str) -> str:
        """What is kept of a command: all that predictors read."""
        return read_part(command)

    def undecided_ttl(self, reload_s: float) -> TTL:
        """TTL of a pin until its reply has been read: Continuum's, and long enough to read it."""
        ttl = self.ttl(None, reload_s)
        return self.capped(max(ttl.seconds, READING_TTL_S), f"not decided yet; {ttl.reason}")

    def decide(self, command: str | None, reload_s: float) -> Decision:
        """FAST pins for the predicted TTL, SLOW frees, UNCERTAIN takes Continuum's TTL."""
        if not command:
            return super().decide(None, reload_s)
        command = read_part(command)
        prediction = self.predictor.predict(command)
        if prediction.speed == "uncertain":
            ttl = self.ttl(tool_name(command), reload_s)
            ttl = TTL(ttl.seconds, f"uncertain, so Continuum's: {ttl.reason}")
        else:
            seconds = prediction.ttl_s if prediction.speed == "fast" else 0.0
            ttl = self.capped(seconds, f"{prediction.speed}, by {prediction.source}")
        is_from_now = prediction.speed == "fast"
        return Decision.predicted(command, prediction, ttl, is_from_now=is_from_now)

    def observe(
        self,
        tool: str | None,
        command: str | None,
        duration_s: float,
        *,
        is_lower_bound: bool = False,
    ) -> None:
        """Learn a duration: Continuum's distributions by tool, the predictor by command."""
        super().observe(tool, command, duration_s, is_lower_bound=is_lower_bound)
        if command:
            command = read_part(command)
            self.predictor.observe(command, duration_s, censored=is_lower_bound)
            if self.on_observed is not None:
                self.on_observed(command, duration_s, is_lower_bound)
