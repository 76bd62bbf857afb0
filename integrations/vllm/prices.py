"""What it takes to have a context again that has left the GPU."""

from __future__ import annotations

from typing import NamedTuple

from .footprint import Footprint
from .step_fit import StepFit
from .tier_watch import TierWatch


class Rebuild(NamedTuple):
    """The price of one context: `seconds` to compute it anew; from a tier `load_s` to load it, and
    of what leaves the GPU it gives back `loaded_share` (0: there is none). It fills `num_tokens` of
    the pool. A second of computing is worth `worth` seconds of the whole pool (see StepFit).
    `step_s` is what a step takes for however little."""

    num_tokens: float
    seconds: float
    load_s: float = 0.0
    loaded_share: float = 0.0
    worth: float = 1.0
    step_s: float = 0.0

    @property
    def alone_s(self) -> float:
        """Seconds that it takes to compute it with nothing beside it."""
        return self.step_s + self.seconds

    @property
    def pool_s(self) -> float:
        """What computing it anew costs, in seconds of the whole pool."""
        return self.seconds * self.worth


class Prices:
    """Prices contexts by what the engine's steps and loads have taken so far."""

    def __init__(self, step_fit: StepFit, tier: TierWatch, footprint: Footprint) -> None:
        self._step_fit = step_fit
        self._tier = tier
        self._footprint = footprint

    def rebuild(self, num_tokens: int) -> Rebuild:
        """What it takes to have a context of so many tokens again."""
        return Rebuild(
            num_tokens * self._footprint.scale,
            self._step_fit.reload.seconds(num_tokens),
            self._tier.load_token_s * num_tokens,
            self._tier.loaded_share,
            self._step_fit.worth,
            self._step_fit.step_s,
        )
