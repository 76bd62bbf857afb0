"""What becomes of a finished turn's pin once its tool is known, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentkv.durations import Prediction
from agentkv.durations.ttl import TTL

from .pin_table import Pin
from .record import MAX_COMMAND_CHARS


@dataclass(frozen=True, slots=True)
class Decision:
    """How long a finished turn stays pinned; the fields after `command` say what was predicted."""

    ttl: TTL
    command: str | None = None
    """What runs, as far as it was read; None if the reply holds no tool call."""
    speed: str | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    source: str | None = None
    explanation: str | None = None
    is_from_now: bool = False
    """The TTL counts from the decision on, not from the end of the turn."""

    @classmethod
    def predicted(
        cls, command: str, prediction: Prediction, ttl: TTL, *, is_from_now: bool
    ) -> Decision:
        """A decision by a prediction; its distribution is not kept."""
        return cls(
            ttl,
            command,
            prediction.speed,
            prediction.p50_s,
            prediction.p90_s,
            prediction.source,
            prediction.explanation,
            is_from_now,
        )

    def as_event(self) -> dict[str, Any]:
        """The details of a `decision` event in the timestamps record."""
        return {
            "command": None if self.command is None else self.command[:MAX_COMMAND_CHARS],
            "speed": self.speed,
            "source": self.source,
            "ttl_s": round(self.ttl.seconds, 6),
            "reason": self.ttl.reason,
        }


def describe(decision: Decision | None, pin: Pin[Any] | None) -> dict[str, Any]:
    """What `/v1/agentkv/jobs/{job_id}` says of a job's last decision, and of its pin's TTL.

    None for what is not known. A pin's TTL counts from the end of the turn.
    """
    told = decision or Decision(TTL(0.0, ""))
    ttl = told.ttl if decision is not None else None
    if pin is not None:
        ttl = TTL(pin.expires_s - pin.pinned_s, pin.reason)
    return {
        "ttl_s": None if ttl is None else ttl.seconds,
        "ttl_reason": None if ttl is None else ttl.reason,
        "command": None if told.command is None else told.command[:MAX_COMMAND_CHARS],
        "predicted_speed": told.speed,
        "predicted_p50_s": told.p50_s,
        "predicted_p90_s": told.p90_s,
        "prediction_source": told.source,
        "prediction_explanation": told.explanation,
    }
